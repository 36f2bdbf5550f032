/* Pins, and the release of what is to go when nothing uses it any more. */
#include <assert.h>
#include <stddef.h>

#include "daemon/sched/internal.h"

static void release_if_idle(struct sched *s, struct sched_object *object)
{
    if (!object->leaving || object->released || object->pins > 0)
        return;
    object->released = true;
    object->next_released = NULL;
    if (s->released)
        s->released_tail->next_released = object;
    else
        s->released = object;
    s->released_tail = object;
}

void sched_pin(struct sched_object *object)
{
    assert(!object->released);
    object->pins++;
}

void sched_unpin(struct sched *s, struct sched_object *object)
{
    assert(object->pins > 0);
    object->pins--;
    release_if_idle(s, object);
}

void sched_object_leave(struct sched *s, struct sched_object *object)
{
    object->leaving = true;
    release_if_idle(s, object);
}

bool sched_objects_leaving(struct sched_object *const *objects, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        if (objects[i]->leaving)
            return true;
    return false;
}

void sched_objects_pin(struct sched_object *const *objects, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        sched_pin(objects[i]);
}

void sched_objects_unpin(struct sched *s, struct sched_object *const *objects, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        sched_unpin(s, objects[i]);
}

struct sched_object *sched_object_next_released(struct sched *s)
{
    struct sched_object *object = s->released;
    if (!object)
        return NULL;
    s->released = object->next_released;
    object->next_released = NULL;
    return object;
}
