/* When page tables are copied to the device, and what becomes of the copy: with a backend that does as it is told. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/app/state.h"
#include "tests/support/check_main.h"

#define PAGES 5u
#define BYTES (PAGES * sizeof(uint32_t))
#define FIRST UINT64_C(0x1000)

struct backend {
    int submits; /* what the next one returns */
    unsigned asked;
    struct be_request *request; /* the last that was taken */
    bool full;
    uint64_t next;
    int64_t taken_bytes; /* and not given back */
    unsigned host_pieces;
};

static int submit(struct backend *be, struct be_request *request)
{
    be->asked++;
    if (be->submits == 0)
        be->request = request;
    return be->submits;
}

static void *host_alloc(struct backend *be, size_t bytes, uint64_t *address)
{
    void *memory = calloc(1, bytes);
    ck_assert_ptr_nonnull(memory);
    *address = (uint64_t)(uintptr_t)memory;
    be->host_pieces++;
    return memory;
}

static void host_free(struct backend *be, void *memory)
{
    be->host_pieces--;
    free(memory);
}

static uint64_t device_alloc(struct backend *be, size_t bytes)
{
    if (be->full)
        return 0;
    be->taken_bytes += (int64_t)bytes;
    return FIRST * ++be->next;
}

static void device_free(struct backend *be, uint64_t address, size_t bytes)
{
    ck_assert(address >= FIRST && address <= FIRST * be->next);
    be->taken_bytes -= (int64_t)bytes;
}

static const struct be_ops ops = {.submit = submit,
                                  .host_alloc = host_alloc,
                                  .host_free = host_free,
                                  .device_alloc = device_alloc,
                                  .device_free = device_free};
static const struct be_ops without = {.submit = submit, .host_alloc = host_alloc, .host_free = host_free};

static struct backend be;
static struct app *app;
static struct app_client client;
static struct app_table_set *sets[2];

static struct app_table_set *set_new(void)
{
    struct app_table_set *set = calloc(1, sizeof(*set));
    ck_assert_ptr_nonnull(set);
    set->object.kind = APP_TABLE_SET;
    set->client = &client;
    set->n_pages = PAGES;
    set->pages = be_host_alloc(&app->be, BYTES, &set->pages_address);
    client.n_table_sets++;
    return set;
}

static void setup(void)
{
    app = calloc(1, sizeof(*app));
    ck_assert_ptr_nonnull(app);
    memset(&be, 0, sizeof(be));
    app->be = (struct be){&ops, &be};
    app->health = MLA_HEALTH_READY;
    list_init(&app->overflow);
    sched_init(&app->sched, &(struct sched_config){.max_running = 1});
    client = (struct app_client){.app = app, .peer = (void *)&client, .n_jobs = 1};
    for (int i = 0; i < 2; i++)
        sets[i] = set_new();
}

static void leave(struct app_table_set *set)
{
    app_event(app, (struct sched_event){.kind = SCHED_UNREGISTER, .object = &set->object.sched});
}

/* Of whatever a test has left: all of it comes back. */
static void teardown(void)
{
    for (int i = 0; i < 2; i++)
        if (sets[i] != NULL)
            leave(sets[i]);
    ck_assert_uint_eq(client.n_table_sets, 0);
    ck_assert_int_eq(be.taken_bytes, 0);
    ck_assert_uint_eq(be.host_pieces, 0);
    ck_assert_uint_eq(app->mirror_bytes, 0);
    ck_assert_uint_eq(app->n_requests, 0);
    free(app);
}

static void use(struct app_table_set *set, unsigned times)
{
    for (unsigned i = 0; i < times; i++)
        mirror_used(app, set);
}

static void end_copy(enum mla_status code)
{
    struct app_request *request = be.request->user;
    struct be_event event = {.kind = BE_DONE, .request = be.request, .error = {.code = code}};
    app->n_requests--;
    request->done(app, request, &event);
}

static void is_there(const struct app_table_set *set, bool there)
{
    uint64_t address = mirror_address(set);
    ck_assert_int_eq(address != set->pages_address, there);
    ck_assert(!there || address % FIRST == 0);
}

/* The second use asks for it; what comes before it has ended reads the tables where they are. */
START_TEST(with_the_second_use)
{
    use(sets[0], 1);
    ck_assert_uint_eq(be.asked, 0);
    use(sets[0], 1);
    ck_assert_uint_eq(be.asked, 1);
    ck_assert_int_eq(be.request->op, BE_MIRROR);
    ck_assert_ptr_eq(be.request->mirror.from, sets[0]->pages);
    ck_assert_uint_eq(be.request->mirror.bytes, BYTES);
    use(sets[0], 3);
    is_there(sets[0], false);
    ck_assert_uint_eq(app->n_requests, 1); /* a clean exit waits for it */
    ck_assert_uint_eq(app->metrics.mirror_uses, 0);
    end_copy(MLA_OK);
    is_there(sets[0], true);
    ck_assert_uint_eq(mirror_address(sets[0]), be.request->mirror.to);
    use(sets[0], 3);
    ck_assert_uint_eq(be.asked, 1);
    ck_assert_uint_eq(app->metrics.mirror_uses, 3);
    ck_assert_uint_eq(app->mirror_bytes, BYTES);
}
END_TEST

static void has_tried(unsigned asked)
{
    ck_assert_uint_eq(be.asked, asked);
    ck_assert_int_eq(be.taken_bytes, 0);
    ck_assert_uint_eq(app->mirror_bytes, 0);
    ck_assert_uint_eq(sets[0]->object.sched.pins, 0);
    is_there(sets[0], false);
}

/* What is in the way is tried again with the next use, and costs nothing meanwhile. */
START_TEST(another_time)
{
    struct app_request in_line;
    be.submits = -EAGAIN;
    use(sets[0], 4);
    has_tried(3);
    be.submits = 0;
    be.full = true;
    use(sets[0], 2);
    has_tried(3);
    be.full = false;
    list_push_back(&app->overflow, &in_line.in_overflow);
    use(sets[0], 2);
    has_tried(3);
    list_init(&app->overflow);
    app->health = MLA_HEALTH_DRAINING;
    use(sets[0], 2);
    has_tried(3);
    app->health = MLA_HEALTH_DEGRADED;
    use(sets[0], 1);
    ck_assert_uint_eq(be.asked, 4);
    end_copy(MLA_OK);
    is_there(sets[0], true);
}
END_TEST

START_TEST(one_at_a_time)
{
    use(sets[0], 2);
    use(sets[1], 3);
    ck_assert_uint_eq(be.asked, 1);
    end_copy(MLA_OK);
    is_there(sets[1], false);
    use(sets[1], 1);
    ck_assert_uint_eq(be.asked, 2);
    end_copy(MLA_OK);
    is_there(sets[0], true);
    is_there(sets[1], true);
    ck_assert_uint_ne(mirror_address(sets[0]), mirror_address(sets[1]));
    ck_assert_uint_eq(app->mirror_bytes, 2 * BYTES);
}
END_TEST

/* A set that could not be copied goes without, others do not. */
START_TEST(a_copy_that_fails)
{
    use(sets[0], 2);
    end_copy(MLA_INTERNAL);
    has_tried(1);
    use(sets[0], 5);
    has_tried(1);
    use(sets[1], 2);
    ck_assert_uint_eq(be.asked, 2);
    end_copy(MLA_OK);
    is_there(sets[1], true);
}
END_TEST

/* Dropped meanwhile: it is there until the copy has ended, well or not, and then all of it goes. */
START_TEST(dropped_meanwhile)
{
    use(sets[0], 2);
    leave(sets[0]);
    ck_assert_uint_eq(client.n_table_sets, 2);
    ck_assert_int_eq(be.taken_bytes, BYTES);
    ck_assert_uint_eq(be.host_pieces, 2);
    end_copy(_i == 0 ? MLA_OK : MLA_INTERNAL);
    sets[0] = NULL;
    ck_assert_uint_eq(client.n_table_sets, 1);
    ck_assert_int_eq(be.taken_bytes, 0);
    ck_assert_uint_eq(be.host_pieces, 1);
}
END_TEST

/* The request is the loop's again, and the set can go. */
START_TEST(the_device_is_lost)
{
    use(sets[0], 2);
    leave(sets[0]);
    app->device_lost = true;
    app->n_requests = 0;
    mirror_device_lost(app);
    app_pump(app);
    sets[0] = NULL;
    ck_assert_uint_eq(client.n_table_sets, 1);
    mirror_device_lost(app);
    use(sets[1], 5);
    ck_assert_uint_eq(be.asked, 1);
}
END_TEST

/* Sets whose tables are a worker's, and backends that read memory of the host. */
START_TEST(nothing_to_copy)
{
    if (_i == 0) {
        be_host_free(&app->be, sets[0]->pages);
        sets[0]->pages = NULL;
    } else {
        app->be.ops = &without;
    }
    use(sets[0], 5);
    ck_assert_uint_eq(be.asked, 0);
    ck_assert_int_eq(be.taken_bytes, 0);
}
END_TEST

MLA_SUITE(app_mirror)
{
    TCase *tc = mla_tcase(suite, "mirror");
    tcase_add_checked_fixture(tc, setup, teardown);
    tcase_add_test(tc, with_the_second_use);
    tcase_add_test(tc, another_time);
    tcase_add_test(tc, one_at_a_time);
    tcase_add_test(tc, a_copy_that_fails);
    tcase_add_loop_test(tc, dropped_meanwhile, 0, 2);
    tcase_add_test(tc, the_device_is_lost);
    tcase_add_loop_test(tc, nothing_to_copy, 0, 2);
}
