#include "tests/bench/gpu/threads.h"

#include <pthread.h>
#include <stdatomic.h>

#include "tests/bench/machine.h"

struct team {
    atomic_size_t next;
    size_t n;
    void (*fn)(void *arg, size_t i, size_t thread);
    void *arg;
};

struct member {
    struct team *team;
    size_t thread;
    pthread_t id;
};

size_t threads_count(void)
{
    size_t n = bench_cpus(NULL, 0);
    return n < 1 ? 1 : n > THREADS_MAX ? THREADS_MAX : n;
}

static void *work(void *argument)
{
    struct member *m = argument;
    for (size_t i; (i = atomic_fetch_add(&m->team->next, 1)) < m->team->n;)
        m->team->fn(m->team->arg, i, m->thread);
    return NULL;
}

void threads_each(size_t n, void (*fn)(void *arg, size_t i, size_t thread), void *arg)
{
    struct team team = {.n = n, .fn = fn, .arg = arg};
    struct member members[THREADS_MAX];
    size_t started = 1, wanted = threads_count();
    members[0] = (struct member){.team = &team};
    while (started < wanted && started < n) {
        members[started] = (struct member){.team = &team, .thread = started};
        if (pthread_create(&members[started].id, NULL, work, &members[started]) != 0)
            break; /* with the threads there are */
        started++;
    }
    work(&members[0]);
    for (size_t t = 1; t < started; t++)
        pthread_join(members[t].id, NULL);
}
