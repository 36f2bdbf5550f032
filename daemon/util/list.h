/* Intrusive circular list with a sentinel: O(1) insertion and removal without naming the list an element is on, which
 * is what a job that leaves whatever queue it stands in needs. For lists whose head is at hand, utlist.h does as well.
 *
 * A node is a struct list member; list_entry() finds the object around it. A node that is on no list points to itself
 * (list_init), so list_del() may be called twice. No allocation, no lock: one thread at a time per list. */
#ifndef MLA_UTIL_LIST_H
#define MLA_UTIL_LIST_H

#include <stdbool.h>
#include <stddef.h>

struct list {
    struct list *prev;
    struct list *next;
};

#define list_entry(node, type, member) ((type *)(void *)((char *)(node)-offsetof(type, member)))

/* node is a struct list *; the _safe form allows the current node to be removed. */
#define list_for_each(node, head) for (struct list *node = (head)->next; node != (head); node = node->next)
#define list_for_each_safe(node, head)                                                                                 \
    for (struct list *node = (head)->next, *node##_next = node->next; node != (head);                                  \
         node = node##_next, node##_next = node->next)

static inline void list_init(struct list *l)
{
    l->prev = l->next = l;
}

static inline bool list_empty(const struct list *head)
{
    return head->next == head;
}

/* First node, or NULL when the list is empty. */
static inline struct list *list_first(const struct list *head)
{
    return list_empty(head) ? NULL : head->next;
}

/* Inserts node, which is on no list, in front of at; in front of the head means last. */
static inline void list_insert_before(struct list *at, struct list *node)
{
    node->prev = at->prev;
    node->next = at;
    at->prev->next = node;
    at->prev = node;
}

static inline void list_push_back(struct list *head, struct list *node)
{
    list_insert_before(head, node);
}

static inline void list_push_front(struct list *head, struct list *node)
{
    list_insert_before(head->next, node);
}

/* Takes node off the list it is on, if any. */
static inline void list_del(struct list *node)
{
    node->prev->next = node->next;
    node->next->prev = node->prev;
    list_init(node);
}

#endif
