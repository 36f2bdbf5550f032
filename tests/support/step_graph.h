/* The decode step of a worker on a GPU as one CUDA graph: lengths and tables to the device; then, layer by layer, the
 * queries, a kernel of the worker's own, the ready word, the wait for the done word, the outputs back. Half way it also
 * waits for a gate, a word of this process's own, so that tests can stop it there. */
#ifndef MLA_TESTS_STEP_GRAPH_H
#define MLA_TESTS_STEP_GRAPH_H

#include "tests/support/step_worker.h"
#include "tests/support/worker_cuda.h"

struct step_graph {
    struct worker_cuda *cuda;
    struct step_worker *w;
    struct mla_sync *gate_page;
    struct mla_cuda_sync *words, *gate;
    size_t pinned_bytes;
    CUgraphExec exec;
};

/* The gate is open. */
void step_graph_new(struct step_graph *g, struct worker_cuda *cuda, struct step_worker *w, uint64_t kernel_ns);
/* The stream is idle. */
void step_graph_free(struct step_graph *g);
void step_graph_launch(struct step_graph *g);
void step_graph_sync(struct step_graph *g);

/* The graph waits before this layer while the gate is closed. */
uint32_t step_graph_gated(const struct step_graph *g);
void step_graph_gate(struct step_graph *g, bool open);
/* Until the layer before the gate is done. */
void step_graph_await_gate(const struct step_graph *g);

#endif
