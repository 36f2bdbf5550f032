/* Streams: a thread each, which executes in order what it is given. */
#include <signal.h>
#include <stdlib.h>

#include "tests/support/fake_cuda/fake.h"

static struct CUstream_st *streams; /* under the lock */
static uint64_t last_id;

CUstream fake_stream_first(void)
{
    return streams;
}

bool fake_stream_stopping(CUstream stream)
{
    return atomic_load(&stream->cancelled) || fake_lost() != CUDA_SUCCESS;
}

static void *work(void *argument)
{
    CUstream stream = argument;
    fake_lock();
    for (;;) {
        while (!stream->head && !stream->destroyed && !atomic_load(&stream->cancelled))
            pthread_cond_wait(&stream->wake, &fake_mutex);
        struct fake_op *op = stream->head;
        if (!op)
            break;
        fake_unlock();
        CUresult result = fake_op_execute(stream, op);
        if (result != CUDA_SUCCESS)
            fake_lose(result);
        fake_lock();
        stream->head = op->next;
        if (!stream->head)
            stream->tail = NULL;
        stream->n_ended++;
        fake_op_free(op);
        FAKE_COUNT(queued, -1);
        pthread_cond_broadcast(&fake_done);
    }
    stream->ended = true;
    fake_unlock();
    fake_scratch_free(stream->scratch);
    return NULL;
}

static void unlink_stream(CUstream stream)
{
    for (struct CUstream_st **at = &streams; *at; at = &(*at)->next)
        if (*at == stream) {
            *at = stream->next;
            return;
        }
}

/* Joins the threads of streams that were destroyed and have ended. Without the lock. */
static void reap(void)
{
    for (;;) {
        fake_lock();
        CUstream found = NULL;
        for (CUstream s = streams; s && !found; s = s->next)
            if (s->destroyed && s->ended && s->waiters == 0)
                found = s;
        if (found)
            unlink_stream(found);
        fake_unlock();
        if (!found)
            return;
        pthread_join(found->thread, NULL);
        pthread_cond_destroy(&found->wake);
        free(found);
    }
}

/* With the lock held. */
static CUstream create(CUcontext context, unsigned flags)
{
    CUstream stream = calloc(1, sizeof *stream);
    if (!stream)
        fake_abort("no memory");
    stream->id = ++last_id;
    stream->context = context;
    stream->flags = flags;
    pthread_cond_init(&stream->wake, NULL);
    stream->next = streams;
    streams = stream;
    /* Signals are the application's. */
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    if (pthread_create(&stream->thread, NULL, work, stream) != 0)
        fake_abort("no thread for a stream");
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return stream;
}

CUstream fake_stream_find(CUstream stream)
{
    CUcontext context = fake_current();
    if (stream == NULL || stream == CU_STREAM_LEGACY || stream == CU_STREAM_PER_THREAD) {
        if (!context->default_stream)
            context->default_stream = create(context, CU_STREAM_DEFAULT);
        return context->default_stream;
    }
    for (CUstream s = streams; s; s = s->next)
        if (s == stream && !s->destroyed)
            return s;
    return NULL;
}

void fake_queue(CUstream stream, struct fake_op *op)
{
    if (op->kind == MLA_FAKE_event)
        op->event.generation = ++op->event.event->recorded;
    if (stream->tail)
        stream->tail->next = op;
    else
        stream->head = op;
    stream->tail = op;
    stream->n_taken++;
    FAKE_COUNT(queued, 1);
    pthread_cond_signal(&stream->wake);
}

CUresult fake_enqueue(CUstream handle, struct fake_op *op)
{
    fake_op_uses(op);
    fake_lock();
    CUstream stream = fake_stream_find(handle);
    if (!stream)
        fake_op_free(op);
    else if (stream->capture)
        fake_capture_add(stream, op);
    else
        fake_queue(stream, op);
    fake_unlock();
    return stream ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

CUresult fake_drain(CUstream stream)
{
    uint64_t target = stream->n_taken;
    stream->waiters++;
    while (stream->n_ended < target && fake_lost() == CUDA_SUCCESS)
        pthread_cond_wait(&fake_done, &fake_mutex);
    stream->waiters--;
    if (atomic_load(&stream->cancelled))
        pthread_cond_broadcast(&fake_done);
    return fake_lost();
}

CUresult fake_drain_blocking(CUcontext context)
{
    for (CUstream s = streams; s; s = s->next) {
        bool ordered = s->context == context && (s->flags & CU_STREAM_NON_BLOCKING) == 0;
        CUresult result = ordered ? fake_drain(s) : CUDA_SUCCESS;
        if (result != CUDA_SUCCESS)
            return result;
    }
    return CUDA_SUCCESS;
}

void fake_streams_stop(CUcontext context)
{
    for (;;) {
        fake_lock();
        CUstream stream = streams;
        while (stream && context && stream->context != context)
            stream = stream->next;
        if (stream) {
            atomic_store(&stream->cancelled, true);
            pthread_cond_signal(&stream->wake);
        }
        fake_unlock();
        if (!stream)
            return;
        pthread_join(stream->thread, NULL);
        fake_lock();
        while (stream->waiters > 0)
            pthread_cond_wait(&fake_done, &fake_mutex);
        unlink_stream(stream);
        if (stream->context->default_stream == stream)
            stream->context->default_stream = NULL;
        fake_unlock();
        pthread_cond_destroy(&stream->wake);
        free(stream);
    }
}

FAKE_API CUresult cuStreamCreate(CUstream *out, unsigned int flags)
{
    FAKE_CALL(cuStreamCreate, FAKE_CONTEXT);
    if (!out || (flags & ~(unsigned)CU_STREAM_NON_BLOCKING) != 0)
        return CUDA_ERROR_INVALID_VALUE;
    reap();
    fake_lock();
    *out = create(fake_current(), flags);
    fake_unlock();
    FAKE_COUNT(streams, 1);
    return CUDA_SUCCESS;
}

/* Returns at once; what is queued still executes. */
FAKE_API CUresult cuStreamDestroy(CUstream handle)
{
    FAKE_CALL(cuStreamDestroy, FAKE_CONTEXT);
    fake_lock();
    CUstream stream = handle ? fake_stream_find(handle) : NULL;
    if (stream) {
        stream->destroyed = true;
        pthread_cond_signal(&stream->wake);
        FAKE_COUNT(streams, -1);
    }
    fake_unlock();
    reap();
    return stream ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

FAKE_API CUresult cuStreamSynchronize(CUstream handle)
{
    FAKE_CALL(cuStreamSynchronize, FAKE_CONTEXT);
    fake_lock();
    CUstream stream = fake_stream_find(handle);
    CUresult result = CUDA_ERROR_INVALID_HANDLE;
    if (stream && stream->capture) {
        stream->capture_broken = true;
        result = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    } else if (stream) {
        result = fake_drain(stream);
    }
    fake_unlock();
    return result;
}

FAKE_API CUresult cuStreamQuery(CUstream handle)
{
    FAKE_CALL(cuStreamQuery, FAKE_CONTEXT);
    fake_lock();
    CUstream stream = fake_stream_find(handle);
    CUresult result = CUDA_ERROR_INVALID_HANDLE;
    if (stream && stream->capture) {
        stream->capture_broken = true;
        result = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    } else if (stream) {
        result = stream->n_ended == stream->n_taken ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
    }
    fake_unlock();
    return result;
}
