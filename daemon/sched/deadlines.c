/* A pairing heap. Each node keeps its first child, its next sibling and, in prev, its previous sibling or, as a first
 * child, its parent; so any node can be cut out. The common order, equal timeouts, makes each new job a child of the
 * root at once and each removal of the root a short merge. */
#include <stddef.h>

#include "daemon/sched/internal.h"

static bool earlier(const struct sched_job *a, const struct sched_job *b)
{
    return a->deadline_ns != b->deadline_ns ? a->deadline_ns < b->deadline_ns : a->order < b->order;
}

/* a and b are roots without siblings, or NULL. */
static struct sched_job *merge(struct sched_job *a, struct sched_job *b)
{
    if (!a || !b)
        return a ? a : b;
    struct sched_job *root = earlier(a, b) ? a : b;
    struct sched_job *child = root == a ? b : a;
    child->in_deadlines.next = root->in_deadlines.child;
    if (child->in_deadlines.next)
        child->in_deadlines.next->in_deadlines.prev = child;
    child->in_deadlines.prev = root;
    root->in_deadlines.child = child;
    return root;
}

static struct sched_job *detach(struct sched_job *job)
{
    if (job)
        job->in_deadlines.prev = job->in_deadlines.next = NULL;
    return job;
}

/* Pairs siblings from the left, then merges the pairs from the right: the order that gives the amortised bound. */
static struct sched_job *merge_siblings(struct sched_job *first)
{
    struct sched_job *pairs = NULL; /* a stack through next */
    while (first) {
        struct sched_job *a = first;
        struct sched_job *b = a->in_deadlines.next;
        first = b ? b->in_deadlines.next : NULL;
        struct sched_job *pair = merge(detach(a), detach(b));
        pair->in_deadlines.next = pairs;
        pairs = pair;
    }
    struct sched_job *root = NULL;
    while (pairs) {
        struct sched_job *pair = pairs;
        pairs = pair->in_deadlines.next;
        root = merge(root, detach(pair));
    }
    return root;
}

void sched_deadline_add(struct sched *s, struct sched_job *job)
{
    struct sched_deadline *d = &job->in_deadlines;
    *d = (struct sched_deadline){.queued = true};
    s->deadlines = merge(s->deadlines, job);
}

void sched_deadline_remove(struct sched *s, struct sched_job *job)
{
    struct sched_deadline *d = &job->in_deadlines;
    if (!d->queued)
        return;
    struct sched_job *children = merge_siblings(d->child);
    if (s->deadlines == job) {
        s->deadlines = children;
    } else {
        if (d->prev->in_deadlines.child == job)
            d->prev->in_deadlines.child = d->next;
        else
            d->prev->in_deadlines.next = d->next;
        if (d->next)
            d->next->in_deadlines.prev = d->prev;
        s->deadlines = merge(s->deadlines, children);
    }
    *d = (struct sched_deadline){.queued = false};
}
