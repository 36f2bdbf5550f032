/* Events: the time at which a stream got there. */
#include <stdlib.h>

#include "tests/support/fake_cuda/fake.h"

#define EVENT_POLL_NS UINT64_C(20000)

static struct CUevent_st *events; /* under the lock */

void fake_event_reference(CUevent event)
{
    event->references++;
}

static void unlink_event(CUevent event)
{
    for (struct CUevent_st **at = &events; *at; at = &(*at)->next)
        if (*at == event) {
            *at = event->next;
            return;
        }
}

void fake_event_release(CUevent event)
{
    if (--event->references > 0)
        return;
    unlink_event(event);
    free(event);
}

void fake_event_complete(CUevent event, uint64_t generation)
{
    if (generation <= event->completed)
        return;
    event->completed = generation;
    event->ns = fake_now_ns();
}

void fake_events_free(CUcontext context)
{
    struct CUevent_st *next;
    for (CUevent e = events; e; e = next) {
        next = e->next;
        if (e->context != context || e->destroyed)
            continue;
        e->destroyed = true;
        fake_event_release(e);
    }
}

static CUevent find(CUevent event)
{
    for (CUevent e = events; e; e = e->next)
        if (e == event && !e->destroyed)
            return e;
    return NULL;
}

FAKE_API CUresult cuEventCreate(CUevent *out, unsigned int flags)
{
    FAKE_CALL(cuEventCreate, FAKE_CONTEXT);
    unsigned known = CU_EVENT_BLOCKING_SYNC | CU_EVENT_DISABLE_TIMING;
    if (!out || (flags & ~known) != 0)
        return CUDA_ERROR_INVALID_VALUE;
    CUevent event = calloc(1, sizeof *event);
    if (!event)
        return CUDA_ERROR_OUT_OF_MEMORY;
    event->flags = flags;
    event->references = 1;
    event->context = fake_current();
    fake_lock();
    event->next = events;
    events = event;
    fake_unlock();
    FAKE_COUNT(events, 1);
    *out = event;
    return CUDA_SUCCESS;
}

FAKE_API CUresult cuEventDestroy(CUevent handle)
{
    FAKE_CALL(cuEventDestroy, FAKE_CONTEXT);
    fake_lock();
    CUevent event = find(handle);
    if (event) {
        event->destroyed = true;
        fake_event_release(event);
        FAKE_COUNT(events, -1);
    }
    fake_unlock();
    return event ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

FAKE_API CUresult cuEventRecord(CUevent handle, CUstream stream)
{
    FAKE_CALL(cuEventRecord, FAKE_CONTEXT);
    fake_lock();
    CUevent event = find(handle);
    if (event)
        fake_event_reference(event);
    fake_unlock();
    if (!event)
        return CUDA_ERROR_INVALID_HANDLE;
    struct fake_op *op = fake_op_new(MLA_FAKE_event);
    op->event.event = event;
    return fake_enqueue(stream, op);
}

/* For what the event has recorded so far. Streams that capture are not joined: CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED.
 */
FAKE_API CUresult cuStreamWaitEvent(CUstream handle, CUevent awaited, unsigned int flags)
{
    FAKE_CALL(cuStreamWaitEvent, FAKE_CONTEXT);
    if (flags != CU_EVENT_WAIT_DEFAULT)
        return CUDA_ERROR_INVALID_VALUE;
    fake_lock();
    CUstream stream = fake_stream_find(handle);
    CUevent event = stream && !stream->capture ? find(awaited) : NULL;
    uint64_t generation = event ? event->recorded : 0;
    if (event)
        fake_event_reference(event);
    bool capturing = stream && stream->capture;
    fake_unlock();
    if (!event)
        return capturing ? CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED : CUDA_ERROR_INVALID_HANDLE;
    struct fake_op *op = fake_op_new(MLA_FAKE_wait_event);
    op->event.event = event;
    op->event.generation = generation;
    return fake_enqueue(handle, op);
}

CUresult fake_execute_wait_event(CUstream stream, const struct fake_op *op)
{
    for (;;) {
        fake_lock();
        bool over = op->event.event->completed >= op->event.generation || fake_lost() != CUDA_SUCCESS;
        fake_unlock();
        if (over || fake_stream_stopping(stream))
            return CUDA_SUCCESS;
        fake_sleep_ns(EVENT_POLL_NS);
    }
}

/* An event that was never recorded is complete. */
FAKE_API CUresult cuEventQuery(CUevent handle)
{
    FAKE_CALL(cuEventQuery, FAKE_CONTEXT);
    fake_lock();
    CUevent event = find(handle);
    CUresult result = !event                               ? CUDA_ERROR_INVALID_HANDLE
                      : event->completed < event->recorded ? CUDA_ERROR_NOT_READY
                                                           : CUDA_SUCCESS;
    fake_unlock();
    return result;
}

FAKE_API CUresult cuEventSynchronize(CUevent handle)
{
    FAKE_CALL(cuEventSynchronize, FAKE_CONTEXT | FAKE_UNSAFE);
    fake_lock();
    CUevent event = find(handle);
    CUresult result = event ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
    if (event) {
        uint64_t target = event->recorded;
        fake_event_reference(event);
        while (event->completed < target && fake_lost() == CUDA_SUCCESS)
            pthread_cond_wait(&fake_done, &fake_mutex);
        fake_event_release(event);
        result = fake_lost();
    }
    fake_unlock();
    return result;
}

FAKE_API CUresult cuEventElapsedTime(float *ms, CUevent from, CUevent to)
{
    FAKE_CALL(cuEventElapsedTime, FAKE_CONTEXT);
    fake_lock();
    CUevent a = find(from), b = find(to);
    CUresult result = CUDA_SUCCESS;
    if (!a || !b || ((a->flags | b->flags) & CU_EVENT_DISABLE_TIMING) != 0 || a->recorded == 0 || b->recorded == 0)
        result = CUDA_ERROR_INVALID_HANDLE;
    else if (a->completed < a->recorded || b->completed < b->recorded)
        result = CUDA_ERROR_NOT_READY;
    else if (ms)
        *ms = (float)((double)(int64_t)(b->ns - a->ns) / 1e6);
    else
        result = CUDA_ERROR_INVALID_VALUE;
    fake_unlock();
    return result;
}
