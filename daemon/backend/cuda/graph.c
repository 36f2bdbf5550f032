/* Launches that come again and again as graphs: one call of the driver instead of three or four.
 *
 * A launch is told by its record (addresses and counts) and by how its records get there; what these say may change.
 * When the same has come so often to a place its records are written to that what a capture costs has been earned back
 * before it would be again, it is captured; another one there lets go of the graph.
 */
#include <string.h>

#include "daemon/backend/cuda/gpu.h"

static bool is_of(const struct cu_graph *graph, const struct mla_kernels *kernels,
                  const struct mla_kernels_launch *launch, const struct cu_copy *copy, unsigned which)
{
    return graph->kernels == kernels && graph->which == which && memcmp(&graph->launch, launch, sizeof *launch) == 0 &&
           graph->copy.to == copy->to && graph->copy.from == copy->from && graph->copy.bytes == copy->bytes &&
           graph->copy.with_launch == copy->with_launch;
}

void cu_graph_close(struct backend *be, struct cu_graph *graph)
{
    if (graph->exec && !be->lost)
        cu_ok(be, be->cu.cuGraphExecDestroy(graph->exec), "cuGraphExecDestroy");
    graph->exec = NULL;
}

static CUresult put(struct backend *be, const struct mla_kernels *kernels, const struct mla_kernels_launch *launch,
                    const struct cu_copy *copy, unsigned which)
{
    CUresult r = CUDA_SUCCESS;
    if (copy->bytes != 0 && !copy->with_launch)
        r = be->cu.cuMemcpyHtoDAsync(copy->to, copy->from, copy->bytes, be->stream);
    if (r != CUDA_SUCCESS)
        return r;
    /* Fetched, however few they are: a parameter would stay what it is now. */
    int rc = copy->with_launch
                 ? mla_kernels_launch_fetch(kernels, be->stream, launch, copy->from_device, copy->bytes, which, &r)
                 : mla_kernels_launch_some(kernels, be->stream, launch, which, &r);
    return rc != 0 && r == CUDA_SUCCESS ? CUDA_ERROR_INVALID_VALUE : r;
}

/* Whatever a driver does not take in a graph, or as one, goes without, from then on. */
static void go_without(struct backend *be, CUresult result, const char *call)
{
    be->options.graphs_after = 0;
    cu_ok(be, result, call);
}

static void capture(struct backend *be, struct cu_graph *graph)
{
    CUgraph captured = NULL;
    const char *call = "cuStreamBeginCapture";
    CUresult r = be->cu.cuStreamBeginCapture(be->stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL), ended;
    if (r == CUDA_SUCCESS) {
        call = "a launch while it is captured";
        r = put(be, graph->kernels, &graph->launch, &graph->copy, graph->which);
        ended = be->cu.cuStreamEndCapture(be->stream, &captured);
        r = r == CUDA_SUCCESS ? ended : r;
    }
    if (r == CUDA_SUCCESS) {
        call = "cuGraphInstantiate";
        r = be->cu.cuGraphInstantiate(&graph->exec, captured, 0);
    }
    if (captured)
        cu_ok(be, be->cu.cuGraphDestroy(captured), "cuGraphDestroy");
    if (r == CUDA_SUCCESS)
        return;
    graph->exec = NULL;
    go_without(be, r, call);
}

bool cu_graph_ready(struct backend *be, struct cu_graph *graph, const struct mla_kernels *kernels,
                    const struct mla_kernels_launch *launch, const struct cu_copy *copy, unsigned which)
{
    if (be->options.graphs_after == 0)
        return false;
    if (!is_of(graph, kernels, launch, copy, which)) {
        cu_graph_close(be, graph);
        *graph = (struct cu_graph){.kernels = kernels, .launch = *launch, .copy = *copy, .which = which};
    }
    if (!graph->exec && ++graph->uses > be->options.graphs_after && !be->lost)
        capture(be, graph);
    return graph->exec && !be->lost;
}

bool cu_graph_launch(struct backend *be, struct cu_graph *graph)
{
    CUresult r = be->cu.cuGraphLaunch(graph->exec, be->stream);
    if (r != CUDA_SUCCESS)
        go_without(be, r, "cuGraphLaunch");
    return r == CUDA_SUCCESS;
}
