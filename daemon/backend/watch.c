#include "daemon/backend/watch.h"

#include <errno.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define ABORT_DISTANCE (INT64_C(1) << 61) /* an abort value is 2^62 beyond; anything that far is one */

int be_watches_add(struct be_watches *w, struct be_request *watch)
{
    if (w->n == w->cap) {
        size_t cap = w->cap ? 2 * w->cap : 64;
        struct be_request **grown = realloc(w->items, cap * sizeof *grown);
        if (!grown)
            return -ENOMEM;
        w->items = grown;
        w->cap = cap;
    }
    w->items[w->n++] = watch;
    return 0;
}

bool be_watches_remove(struct be_watches *w, const struct be_request *watch)
{
    for (size_t i = 0; i < w->n; i++) {
        if (w->items[i] == watch) {
            memmove(&w->items[i], &w->items[i + 1], (w->n - i - 1) * sizeof *w->items);
            w->n--;
            return true;
        }
    }
    return false;
}

void be_watches_poll(struct be_watches *w, be_watch_fn fn, void *context)
{
    size_t kept = 0;
    for (size_t i = 0; i < w->n; i++) {
        struct be_request *watch = w->items[i];
        int64_t distance = (int64_t)(__atomic_load_n(watch->watch.word, __ATOMIC_ACQUIRE) - watch->watch.value);
        if (distance < 0)
            w->items[kept++] = watch;
        else
            fn(context, watch, distance >= ABORT_DISTANCE);
    }
    w->n = kept;
}

void be_watches_free(struct be_watches *w)
{
    free(w->items);
    *w = (struct be_watches){0};
}
