/* Copies of page tables in the device's memory.
 *
 * What a table set brings lies in memory of the host, and the kernels read it over the bus at every launch, which a
 * launch that is alone waits for. So a set that a second request names is copied to the device: what has come twice
 * mostly comes again, as with the layers of a step or a template whose tables stay; what comes once would be read once
 * more for nothing. Small ones are copied, too: it is the way that takes the time. The copy is asked for behind that
 * second request, which does not wait for it, and requests that come when it has ended name it. A set is constant, so
 * all its addresses are as good.
 *
 * It is done without where there is no room, no place in the backend's ring or another copy under way; the next request
 * tries again. The set is pinned while it is copied, and gives the memory back when it is released itself: nothing that
 * has its address is at the backend any more. */
#include "daemon/app/state.h"

static size_t bytes_of(const struct app_table_set *set)
{
    return set->n_pages * sizeof(*set->pages);
}

static void give_back(struct app *app, struct app_table_set *set)
{
    be_device_free(&app->be, set->mirror_address, bytes_of(set));
    app->mirror_bytes -= bytes_of(set);
    set->mirror_address = 0;
}

static void end_copy(struct app *app)
{
    struct app_table_set *set = app->mirroring.owner;
    app->mirroring.owner = NULL;
    sched_unpin(&app->sched, &set->object.sched);
}

static void on_copied(struct app *app, struct app_request *request, const struct be_event *event)
{
    struct app_table_set *set = request->owner;
    set->mirror = event->error.code == MLA_OK ? MIRROR_THERE : MIRROR_REFUSED;
    if (set->mirror == MIRROR_REFUSED)
        give_back(app, set);
    end_copy(app);
    app_pump(app);
}

static void copy(struct app *app, struct app_table_set *set)
{
    struct app_request *request = &app->mirroring;
    if (request->owner != NULL || !app_takes_work(app))
        return;
    set->mirror_address = be_device_alloc(&app->be, bytes_of(set));
    if (set->mirror_address == 0)
        return;
    app->mirror_bytes += bytes_of(set);
    request->be = (struct be_request){
        .op = BE_MIRROR, .mirror = {.from = set->pages, .to = set->mirror_address, .bytes = bytes_of(set)}};
    request->done = on_copied;
    if (!app_submit_if_room(app, request)) {
        give_back(app, set);
        return;
    }
    request->owner = set;
    sched_pin(&set->object.sched);
    set->mirror = MIRROR_COPYING;
}

uint64_t mirror_address(const struct app_table_set *set)
{
    return set->mirror == MIRROR_THERE ? set->mirror_address : set->pages_address;
}

void mirror_used(struct app *app, struct app_table_set *set)
{
    if (set->pages == NULL)
        return;
    switch (set->mirror) {
    case MIRROR_UNUSED:
        set->mirror = MIRROR_USED;
        break;
    case MIRROR_USED:
        copy(app, set);
        break;
    case MIRROR_THERE:
        app->metrics.mirror_uses++;
        break;
    case MIRROR_COPYING:
    case MIRROR_REFUSED:
        break;
    }
}

void mirror_release(struct app *app, struct app_table_set *set)
{
    if (set->mirror_address != 0)
        give_back(app, set);
}

void mirror_device_lost(struct app *app)
{
    if (app->mirroring.owner != NULL)
        end_copy(app);
}
