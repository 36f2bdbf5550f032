/* Stream capture and graphs. A graph is the operations of one stream in order. */
#include <stdlib.h>

#include "tests/support/fake_cuda/fake.h"

static struct CUgraph_st *graphs; /* under the lock */
static struct CUgraphExec_st *execs;

static void free_ops(struct fake_op *op)
{
    while (op) {
        struct fake_op *next = op->next;
        fake_op_free(op);
        op = next;
    }
}

/* Appends copies of a list to another. */
static void clone_ops(struct fake_op **end, const struct fake_op *from)
{
    for (; from; from = from->next) {
        *end = fake_op_clone(from);
        end = &(*end)->next;
    }
}

void fake_capture_add(CUstream stream, struct fake_op *op)
{
    CUgraph graph = stream->capture;
    free(op->uses);
    op->uses = NULL;
    op->n_uses = 0;
    if (graph->tail)
        graph->tail->next = op;
    else
        graph->head = op;
    graph->tail = op;
}

bool fake_capture_forbids(void)
{
    bool forbidden = false;
    for (CUstream s = fake_stream_first(); s; s = s->next) {
        bool own = s->capture && pthread_equal(s->capture_thread, pthread_self());
        if (s->capture && (s->capture_mode == CU_STREAM_CAPTURE_MODE_GLOBAL ||
                           (own && s->capture_mode == CU_STREAM_CAPTURE_MODE_THREAD_LOCAL))) {
            s->capture_broken = true;
            forbidden = true;
        }
    }
    return forbidden;
}

static void free_graph(CUgraph graph)
{
    for (struct CUgraph_st **at = &graphs; *at; at = &(*at)->next)
        if (*at == graph) {
            *at = graph->next;
            break;
        }
    free_ops(graph->head);
    free(graph);
}

static void free_exec(CUgraphExec exec)
{
    for (struct CUgraphExec_st **at = &execs; *at; at = &(*at)->next)
        if (*at == exec) {
            *at = exec->next;
            break;
        }
    free_ops(exec->head);
    free(exec);
}

void fake_graphs_free(CUcontext context)
{
    CUgraph next_graph;
    for (CUgraph g = graphs; g; g = next_graph) {
        next_graph = g->next;
        if (g->context == context)
            free_graph(g);
    }
    CUgraphExec next_exec;
    for (CUgraphExec e = execs; e; e = next_exec) {
        next_exec = e->next;
        if (e->context == context)
            free_exec(e);
    }
}

static CUgraph find_graph(CUgraph graph)
{
    for (CUgraph g = graphs; g; g = g->next)
        if (g == graph)
            return g;
    return NULL;
}

static CUgraphExec find_exec(CUgraphExec exec)
{
    for (CUgraphExec e = execs; e; e = e->next)
        if (e == exec)
            return e;
    return NULL;
}

FAKE_API CUresult cuStreamBeginCapture(CUstream handle, CUstreamCaptureMode mode)
{
    FAKE_CALL(cuStreamBeginCapture, FAKE_CONTEXT);
    if (handle == NULL || handle == CU_STREAM_LEGACY)
        return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    CUgraph graph = calloc(1, sizeof *graph);
    if (!graph)
        return CUDA_ERROR_OUT_OF_MEMORY;
    graph->context = fake_current();
    fake_lock();
    CUstream stream = fake_stream_find(handle);
    CUresult result = !stream ? CUDA_ERROR_INVALID_HANDLE : stream->capture ? CUDA_ERROR_ILLEGAL_STATE : CUDA_SUCCESS;
    if (result == CUDA_SUCCESS) {
        graph->next = graphs;
        graphs = graph;
        stream->capture = graph;
        stream->capture_broken = false;
        stream->capture_mode = mode;
        stream->capture_thread = pthread_self();
        FAKE_COUNT(graphs, 1);
    } else {
        free(graph);
    }
    fake_unlock();
    return result;
}

FAKE_API CUresult cuStreamEndCapture(CUstream handle, CUgraph *out)
{
    FAKE_CALL(cuStreamEndCapture, FAKE_CONTEXT);
    fake_lock();
    CUstream stream = fake_stream_find(handle);
    CUresult result = CUDA_SUCCESS;
    if (!stream) {
        result = CUDA_ERROR_INVALID_HANDLE;
    } else if (!stream->capture) {
        result = CUDA_ERROR_ILLEGAL_STATE;
    } else if (stream->capture_mode != CU_STREAM_CAPTURE_MODE_RELAXED &&
               !pthread_equal(stream->capture_thread, pthread_self())) {
        result = CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD;
    } else {
        *out = stream->capture;
        stream->capture = NULL;
        if (stream->capture_broken) {
            free_graph(*out);
            *out = NULL;
            FAKE_COUNT(graphs, -1);
            result = CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
        }
    }
    fake_unlock();
    return result;
}

FAKE_API CUresult cuGraphInstantiate(CUgraphExec *out, CUgraph handle, unsigned long long flags)
{
    FAKE_CALL(cuGraphInstantiate, FAKE_CONTEXT);
    if (!out || flags != 0)
        return CUDA_ERROR_INVALID_VALUE;
    CUgraphExec exec = calloc(1, sizeof *exec);
    if (!exec)
        return CUDA_ERROR_OUT_OF_MEMORY;
    exec->context = fake_current();
    fake_lock();
    CUgraph graph = find_graph(handle);
    if (graph) {
        clone_ops(&exec->head, graph->head);
        exec->next = execs;
        execs = exec;
        FAKE_COUNT(graph_execs, 1);
        *out = exec;
    } else {
        free(exec);
    }
    fake_unlock();
    return graph ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

/* Each launch executes copies, so that the graph may be destroyed meanwhile. */
FAKE_API CUresult cuGraphLaunch(CUgraphExec handle, CUstream stream_handle)
{
    FAKE_CALL(cuGraphLaunch, FAKE_CONTEXT);
    struct fake_op *ops = NULL;
    fake_lock();
    CUgraphExec exec = find_exec(handle);
    if (exec)
        clone_ops(&ops, exec->head);
    fake_unlock();
    if (!exec)
        return CUDA_ERROR_INVALID_VALUE;
    for (struct fake_op *op = ops; op; op = op->next)
        fake_op_uses(op);

    fake_lock();
    CUstream stream = fake_stream_find(stream_handle);
    while (stream && ops) {
        struct fake_op *op = ops;
        ops = op->next;
        op->next = NULL;
        if (stream->capture)
            fake_capture_add(stream, op);
        else
            fake_queue(stream, op);
    }
    free_ops(ops);
    fake_unlock();
    return stream ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

FAKE_API CUresult cuGraphExecDestroy(CUgraphExec handle)
{
    FAKE_CALL(cuGraphExecDestroy, FAKE_CONTEXT);
    fake_lock();
    CUgraphExec exec = find_exec(handle);
    if (exec) {
        free_exec(exec);
        FAKE_COUNT(graph_execs, -1);
    }
    fake_unlock();
    return exec ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

FAKE_API CUresult cuGraphDestroy(CUgraph handle)
{
    FAKE_CALL(cuGraphDestroy, FAKE_CONTEXT);
    fake_lock();
    CUgraph graph = find_graph(handle);
    if (graph) {
        free_graph(graph);
        FAKE_COUNT(graphs, -1);
    }
    fake_unlock();
    return graph ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
