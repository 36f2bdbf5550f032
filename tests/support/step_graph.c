#include "tests/support/step_graph.h"

#include <string.h>
#include <unistd.h>

#include "tests/support/check_main.h"
#include "tests/support/daemon_fixture.h"

static CUdeviceptr device_at(const struct step_graph *g, uint64_t offset)
{
    return worker_cuda_address(g->w->device) + offset;
}

static uint8_t *host_at(const struct step_graph *g, uint64_t offset)
{
    return (uint8_t *)g->w->memory.addr + offset;
}

static void to_device(struct step_graph *g, uint64_t offset, uint64_t bytes)
{
    CU_OK(g->cuda, cuMemcpyHtoDAsync(device_at(g, offset), host_at(g, offset), bytes, g->cuda->stream));
}

static void to_host(struct step_graph *g, uint64_t offset, uint64_t bytes)
{
    CU_OK(g->cuda, cuMemcpyDtoHAsync(host_at(g, offset), device_at(g, offset), bytes, g->cuda->stream));
}

static void capture_layer(struct step_graph *g, uint32_t i, uint64_t kernel_ns)
{
    const struct step_worker *w = g->w;
    if (i == step_graph_gated(g))
        ck_assert_int_eq(mla_cuda_wait_done(g->gate, 0, 1, g->cuda->stream), MLA_OK);
    to_device(g, w->q_at + i * STEP_Q_BYTES, STEP_Q_BYTES);
    worker_cuda_spin(g->cuda, g->cuda->stream, kernel_ns);
    ck_assert_int_eq(mla_cuda_write_ready(g->words, 2 * i, 1, g->cuda->stream), MLA_OK);
    ck_assert_int_eq(mla_cuda_wait_done(g->words, 2 * i + 1, 1, g->cuda->stream), MLA_OK);
    to_host(g, w->o_at + i * STEP_O_BYTES, STEP_O_BYTES);
    to_host(g, w->lse_at + i * STEP_LSE_BYTES, STEP_LSE_BYTES);
    to_host(g, w->status_at + i * STEP_STATUS_BYTES, STEP_STATUS_BYTES);
}

void step_graph_new(struct step_graph *g, struct worker_cuda *cuda, struct step_worker *w, uint64_t kernel_ns)
{
    CUgraph graph;
    memset(g, 0, sizeof(*g));
    g->cuda = cuda;
    g->w = w;
    worker_ok(w->client, mla_sync_create(w->client, 1, WORKER_TIMEOUT_US, &g->gate_page));
    worker_ok(w->client, mla_cuda_sync_attach(w->client, w->words, &g->words));
    worker_ok(w->client, mla_cuda_sync_attach(w->client, g->gate_page, &g->gate));
    step_graph_gate(g, true);
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    g->pinned_bytes = (w->memory.size + page - 1) / page * page;
    CU_OK(cuda, cuMemHostRegister(w->memory.addr, g->pinned_bytes, CU_MEMHOSTREGISTER_PORTABLE));
    worker_cuda_spin(cuda, cuda->stream, 1000); /* its module is loaded before the capture */
    CU_OK(cuda, cuStreamSynchronize(cuda->stream));
    CU_OK(cuda, cuStreamBeginCapture(cuda->stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
    to_device(g, 0, STEP_INPUTS);
    for (uint32_t i = 0; i < w->n_layers; i++)
        capture_layer(g, i, kernel_ns);
    CU_OK(cuda, cuStreamEndCapture(cuda->stream, &graph));
    CU_OK(cuda, cuGraphInstantiate(&g->exec, graph, 0));
    CU_OK(cuda, cuGraphDestroy(graph));
}

void step_graph_free(struct step_graph *g)
{
    CU_OK(g->cuda, cuGraphExecDestroy(g->exec));
    CU_OK(g->cuda, cuMemHostUnregister(g->w->memory.addr));
    ck_assert_int_eq(mla_cuda_sync_detach(g->words), MLA_OK);
    ck_assert_int_eq(mla_cuda_sync_detach(g->gate), MLA_OK);
    ck_assert_int_eq(mla_sync_destroy(g->gate_page, WORKER_TIMEOUT_US), MLA_OK);
}

void step_graph_launch(struct step_graph *g)
{
    CU_OK(g->cuda, cuGraphLaunch(g->exec, g->cuda->stream));
}

void step_graph_sync(struct step_graph *g)
{
    CU_OK(g->cuda, cuStreamSynchronize(g->cuda->stream));
}

uint32_t step_graph_gated(const struct step_graph *g)
{
    return g->w->n_layers / 2;
}

void step_graph_gate(struct step_graph *g, bool open)
{
    mla_word_store(mla_sync_word(g->gate_page, 0), open);
}

/* The daemon takes a done word back when the next layer is ready, so this one stays. */
void step_graph_await_gate(const struct step_graph *g)
{
    WAIT_FOR(mla_word_load(step_done(g->w, step_graph_gated(g) - 1)) == 1, 20000 * TEST_SLOW);
}
