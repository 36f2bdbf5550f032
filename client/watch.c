#include "client/watch.h"

#include "client/template.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

struct mlac_watch {
    pthread_t thread;
    int sock; /* a duplicate: the handle may close its own, and the number be given anew */
    pthread_mutex_t lock;
    struct list armed; /* struct mlac_request, by watched; under lock, as what follows */
    struct list templates;
    bool hung_up;
};

void mlac_words_abort(const struct mlac_words *w, enum mla_status reason)
{
    if (!w->done)
        return;
    uint64_t now = mla_word_load(w->done);
    if (mla_word_reached(now, w->value))
        return;
    for (uint32_t i = 0; i < w->n_status; i++)
        mla_word_store(&w->status[i], (uint64_t)reason << 32);
    /* Another thread, or the daemon, may have stored just now: the loop ends when the word has come to its value. */
    while (!mla_word_reached(now, w->value) && !__atomic_compare_exchange_n(w->done, &now, w->value + MLA_ABORT_OFFSET,
                                                                            false, __ATOMIC_RELEASE, __ATOMIC_ACQUIRE))
        ;
}

void mlac_abort_words(const struct mlac_request *r, enum mla_status reason)
{
    mlac_words_abort(&(struct mlac_words){r->done_word, r->done_value, r->status_word, r->n_status}, reason);
}

static void abort_template(const struct mla_template *t)
{
    for (uint32_t i = 0; i < t->n_layers; i++)
        mlac_words_abort(&t->words[i], MLA_DISCONNECTED);
}

static void *run(void *arg)
{
    struct mlac_watch *w = arg;
    struct pollfd p = {.fd = w->sock, .events = POLLRDHUP};
    while (poll(&p, 1, -1) < 0 && errno == EINTR)
        ;
    pthread_mutex_lock(&w->lock);
    w->hung_up = true;
    list_for_each (node, &w->armed)
        mlac_abort_words(list_entry(node, struct mlac_request, watched), MLA_DISCONNECTED);
    list_for_each (node, &w->templates)
        abort_template(list_entry(node, struct mla_template, watched));
    pthread_mutex_unlock(&w->lock);
    return NULL;
}

int mlac_watch_start(int sock, struct mlac_watch **out)
{
    struct mlac_watch *w = calloc(1, sizeof(*w));
    sigset_t all, before;
    if (!w)
        return -ENOMEM;
    list_init(&w->armed);
    list_init(&w->templates);
    w->sock = fcntl(sock, F_DUPFD_CLOEXEC, 3);
    int rc = w->sock < 0 ? errno : pthread_mutex_init(&w->lock, NULL);
    if (rc == 0) {
        sigfillset(&all);
        pthread_sigmask(SIG_SETMASK, &all, &before); /* the program's signals are its own threads' */
        rc = pthread_create(&w->thread, NULL, run, w);
        pthread_sigmask(SIG_SETMASK, &before, NULL);
        if (rc)
            pthread_mutex_destroy(&w->lock);
    }
    if (rc) {
        if (w->sock >= 0)
            close(w->sock);
        free(w);
        return -rc;
    }
    *out = w;
    return 0;
}

void mlac_watch_stop(struct mlac_watch *watch)
{
    if (!watch)
        return;
    pthread_join(watch->thread, NULL);
    pthread_mutex_destroy(&watch->lock);
    close(watch->sock);
    free(watch);
}

void mlac_watch_add(struct mlac_watch *watch, struct mlac_request *r)
{
    pthread_mutex_lock(&watch->lock);
    list_push_back(&watch->armed, &r->watched);
    if (watch->hung_up)
        mlac_abort_words(r, MLA_DISCONNECTED);
    pthread_mutex_unlock(&watch->lock);
}

void mlac_watch_remove(struct mlac_watch *watch, struct mlac_request *r)
{
    pthread_mutex_lock(&watch->lock);
    list_del(&r->watched);
    pthread_mutex_unlock(&watch->lock);
}

void mlac_watch_add_template(struct mlac_watch *watch, struct mla_template *t)
{
    pthread_mutex_lock(&watch->lock);
    list_push_back(&watch->templates, &t->watched);
    if (watch->hung_up)
        abort_template(t);
    pthread_mutex_unlock(&watch->lock);
}

void mlac_watch_remove_template(struct mlac_watch *watch, struct mla_template *t)
{
    pthread_mutex_lock(&watch->lock);
    list_del(&t->watched);
    pthread_mutex_unlock(&watch->lock);
}
