#include "daemon/backend/cpu/pool.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

struct start {
    struct cpu_pool *pool;
    uint32_t worker;
};

static void *work(void *argument)
{
    struct start start = *(struct start *)argument;
    struct cpu_pool *pool = start.pool;
    free(argument);
    char name[16];
    snprintf(name, sizeof name, "mlad-cpu-%u", start.worker);
    pthread_setname_np(pthread_self(), name);

    uint64_t generation = 0;
    for (;;) {
        pthread_mutex_lock(&pool->lock);
        while (!pool->stop && pool->generation == generation)
            pthread_cond_wait(&pool->start, &pool->lock);
        bool stop = pool->stop;
        cpu_pool_fn fn = pool->fn;
        void *context = pool->context;
        generation = pool->generation;
        pthread_mutex_unlock(&pool->lock);
        if (stop)
            return NULL;
        fn(context, start.worker);
        if (atomic_fetch_sub_explicit(&pool->running, 1, memory_order_acq_rel) == 1) {
            uint64_t one = 1;
            while (write(pool->done_fd, &one, sizeof one) < 0 && errno == EINTR)
                continue;
        }
    }
}

static int spawn(struct cpu_pool *pool)
{
    struct start *start = malloc(sizeof *start);
    if (!start)
        return -ENOMEM;
    start->pool = pool;
    start->worker = pool->n_threads;
    int rc = pthread_create(&pool->threads[pool->n_threads], NULL, work, start);
    if (rc != 0) {
        free(start);
        return -rc;
    }
    pool->n_threads++;
    return 0;
}

int cpu_pool_open(struct cpu_pool *pool, uint32_t n_threads, int done_fd)
{
    *pool = (struct cpu_pool){.done_fd = done_fd};
    pool->threads = calloc(n_threads, sizeof *pool->threads);
    if (!pool->threads)
        return -ENOMEM;
    pthread_mutex_init(&pool->lock, NULL);
    pthread_cond_init(&pool->start, NULL);

    /* Signals are the loop's. */
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int rc = 0;
    for (uint32_t i = 0; i < n_threads && rc == 0; i++)
        rc = spawn(pool);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (rc != 0)
        cpu_pool_close(pool);
    return rc;
}

void cpu_pool_close(struct cpu_pool *pool)
{
    if (!pool->threads)
        return;
    pthread_mutex_lock(&pool->lock);
    pool->stop = true;
    pthread_cond_broadcast(&pool->start);
    pthread_mutex_unlock(&pool->lock);
    for (uint32_t i = 0; i < pool->n_threads; i++)
        pthread_join(pool->threads[i], NULL);
    pthread_cond_destroy(&pool->start);
    pthread_mutex_destroy(&pool->lock);
    free(pool->threads);
    pool->threads = NULL;
}

void cpu_pool_start(struct cpu_pool *pool, cpu_pool_fn fn, void *context)
{
    pthread_mutex_lock(&pool->lock);
    pool->fn = fn;
    pool->context = context;
    atomic_store_explicit(&pool->running, pool->n_threads, memory_order_relaxed);
    pool->generation++;
    pthread_cond_broadcast(&pool->start);
    pthread_mutex_unlock(&pool->lock);
}

bool cpu_pool_ended(struct cpu_pool *pool)
{
    return atomic_load_explicit(&pool->running, memory_order_acquire) == 0;
}
