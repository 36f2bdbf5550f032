/* The device thread of the CPU backend: order of requests and events, words, the event descriptor, idleness. */
#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include "daemon/backend/backend.h"
#include "tests/support/check_main.h"
#include "tests/support/decode_case.h"

static int cpu_index(void)
{
    for (int i = 0; be_all[i]; i++)
        if (strcmp(be_all[i]->name, "cpu") == 0)
            return i;
    ck_abort_msg("this build has no CPU backend");
}

static struct rig open_cpu(void)
{
    struct rig rig;
    struct be_config config = {.threads = 2, .workspace_bytes = 16u << 20};
    ck_assert(rig_open_config(&rig, cpu_index(), &config));
    return rig;
}

static struct ticket watch(const uint64_t *word, uint64_t value)
{
    return (struct ticket){.request = {.op = BE_WATCH, .watch = {.word = word, .value = value}}};
}

static struct ticket unwatch(struct ticket *of)
{
    return (struct ticket){.request = {.op = BE_UNWATCH, .unwatch = &of->request}};
}

static void store(uint64_t *word, uint64_t value)
{
    __atomic_store_n(word, value, __ATOMIC_RELEASE);
}

static void sleep_ms(long ms)
{
    struct timespec t = {.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000};
    nanosleep(&t, NULL);
}

START_TEST(facts_are_filled)
{
    struct rig rig = open_cpu();
    const struct be_facts *f = rig.facts;
    ck_assert_str_eq(f->name, "cpu");
    ck_assert_uint_eq(strlen(f->gpu_uuid), 36);
    ck_assert_int_eq(strncmp(f->gpu_uuid, "CPU-", 4), 0);
    ck_assert_uint_eq(strspn(f->gpu_uuid + 4, "0123456789abcdef"), 32);
    ck_assert_uint_gt(strlen(f->device_name), 0);
    ck_assert_uint_eq(f->device.resident_units, 2);
    ck_assert_uint_eq(f->tile_rows, 256);
    ck_assert_uint_eq(f->workspace_bytes, 16u << 20);
    ck_assert_uint_eq(f->features, MLA_FEATURE_DECODE | MLA_FEATURE_MEMFD | MLA_FEATURE_SYNC | MLA_FEATURE_SUSPEND |
                                       MLA_FEATURE_PUBLISH | MLA_FEATURE_STEP);
    char uuid[64];
    memcpy(uuid, f->gpu_uuid, sizeof uuid);
    rig_close(&rig);
    rig = open_cpu();
    if (access("/etc/machine-id", R_OK) == 0)
        ck_assert_str_eq(rig.facts->gpu_uuid, uuid);
    rig_close(&rig);
}
END_TEST

START_TEST(word_comes)
{
    struct rig rig = open_cpu();
    uint64_t word = 4;
    struct ticket w = watch(&word, 5);
    rig_submit(&rig, &w);
    ck_assert_uint_eq(rig_poll(&rig, 50), 0);
    store(&word, 5);
    rig_wait(&rig, &w);
    ck_assert(!w.aborted);

    struct ticket later = watch(&word, 3); /* counted past already */
    rig_submit(&rig, &later);
    rig_wait(&rig, &later);
    ck_assert(!later.aborted);

    store(&word, 2); /* wraps as a signed difference */
    struct ticket wrapped = watch(&word, UINT64_MAX - 1);
    rig_submit(&rig, &wrapped);
    rig_wait(&rig, &wrapped);
    ck_assert(!wrapped.aborted);
    rig_close(&rig);
}
END_TEST

START_TEST(abort_value)
{
    struct rig rig = open_cpu();
    uint64_t word = 0;
    struct ticket w = watch(&word, 7);
    rig_submit(&rig, &w);
    store(&word, 7 + (UINT64_C(1) << 62));
    rig_wait(&rig, &w);
    ck_assert(w.aborted);
    rig_close(&rig);
}
END_TEST

START_TEST(unwatch_ends_a_watch)
{
    struct rig rig = open_cpu();
    uint64_t words[3] = {0, 0, 0};
    struct ticket w[3];
    for (int i = 0; i < 3; i++) {
        w[i] = watch(&words[i], 1);
        rig_submit(&rig, &w[i]);
    }
    struct ticket end = unwatch(&w[1]);
    rig_submit(&rig, &end);
    rig_wait(&rig, &end);
    for (int i = 0; i < 3; i++)
        store(&words[i], 1);
    rig_wait(&rig, &w[0]);
    rig_wait(&rig, &w[2]);
    rig_poll(&rig, 20);
    ck_assert_uint_eq(w[1].ready_at, 0);

    /* Its event may have come before: the answer is the same. */
    struct ticket again = unwatch(&w[0]);
    rig_submit(&rig, &again);
    rig_wait(&rig, &again);
    ck_assert_int_eq(again.error.code, MLA_OK);
    rig_close(&rig);
}
END_TEST

START_TEST(abort_writes_status_then_word)
{
    struct rig rig = open_cpu();
    uint64_t word = 1;
    uint64_t status[4] = {9, 9, 9, 9};
    struct ticket a = {.request = {.op = BE_ABORT,
                                   .abort = {.word = &word,
                                             .value = 2 + (UINT64_C(1) << 62),
                                             .user_status = (uint64_t)(uintptr_t)status,
                                             .n_seqs = 3,
                                             .code = MLA_TIMED_OUT}}};
    rig_submit(&rig, &a);
    while (__atomic_load_n(&word, __ATOMIC_ACQUIRE) == 1)
        continue;
    for (int i = 0; i < 3; i++)
        ck_assert_uint_eq(status[i], (uint64_t)MLA_TIMED_OUT << 32);
    ck_assert_uint_eq(status[3], 9);
    ck_assert_uint_eq(word, 2 + (UINT64_C(1) << 62));
    rig_wait(&rig, &a);
    rig_close(&rig);
}
END_TEST

static struct dc *batch_of(struct rig *rig, uint32_t kv_len)
{
    struct dc *c = dc_new(rig);
    dc_add(c,
           &(struct dc_shape){.heads = 64, .n_seqs = 1, .seqs = SEQS({4, kv_len}), .pages = DC_ALIAS, .num_pages = 64});
    dc_plan(c);
    return c;
}

/* While a batch runs, words are seen and watches set; what ends memory, or comes behind its done words, waits. More
 * requests wait than the ring holds. */
START_TEST(beside_a_batch)
{
    enum { MANY = 3000 };
    struct rig rig = open_cpu();
    struct dc *c = batch_of(&rig, 400000); /* a second or more: the test may be slow itself */
    uint64_t early = 0, late = 0, done[2] = {0, 0};
    struct be_done_word words[2] = {{&done[0], 7}, {&done[1], 8}};
    c->done = words;
    c->n_done = 2;
    struct mem mem;
    mem_take(&rig, &mem, &mem_memfd, 4096, 0);

    struct ticket w_early = watch(&early, 1), w_late = watch(&late, 1);
    struct ticket end = {.request = {.op = BE_UNMAP, .region = &mem.region}};
    uint64_t other_word = 0, other_status = 0;
    struct ticket apart = {.request = {.op = BE_ABORT,
                                       .abort = {.word = &other_word,
                                                 .value = 5,
                                                 .user_status = (uint64_t)(uintptr_t)&other_status,
                                                 .n_seqs = 1,
                                                 .code = MLA_TIMED_OUT}}};
    rig_submit(&rig, &w_early);
    dc_launch(c);
    rig_submit(&rig, &end); /* waits, and nothing waits behind it */
    struct be_region unmapped = {0};
    struct ticket *many = calloc(MANY, sizeof *many);
    ck_assert_ptr_nonnull(many);
    for (int i = 0; i < MANY; i++) {
        many[i] = (struct ticket){.request = {.op = BE_UNMAP, .region = &unmapped}};
        rig_submit(&rig, &many[i]);
    }
    rig_submit(&rig, &w_late);
    rig_submit(&rig, &apart);
    while (c->ticket.submitted_at == 0)
        rig_poll(&rig, 1000);
    store(&early, 1);
    store(&late, 1);
    rig_wait(&rig, &w_early);
    rig_wait(&rig, &w_late);
    rig_wait(&rig, &apart);
    ck_assert_uint_eq(other_word, 5);
    ck_assert_uint_eq(other_status, (uint64_t)MLA_TIMED_OUT << 32);
    ck_assert_msg(c->ticket.ended_at == 0, "the batch was over before its words were looked at");
    dc_wait(c);
    ck_assert_uint_eq(__atomic_load_n(&done[0], __ATOMIC_ACQUIRE), 7);
    ck_assert_uint_eq(__atomic_load_n(&done[1], __ATOMIC_ACQUIRE), 8);
    rig_wait(&rig, &end);
    ck_assert_uint_gt(end.ended_at, c->ticket.ended_at);
    for (int i = 0; i < MANY; i++) {
        rig_wait(&rig, &many[i]);
        ck_assert_uint_gt(many[i].ended_at, i == 0 ? end.ended_at : many[i - 1].ended_at);
    }
    free(many);
    ck_assert_uint_gt(c->batch.ended_ns, c->batch.started_ns);
    munmap(mem.host, mem.bytes);
    dc_free(c);
    rig_close(&rig);
}
END_TEST

/* An abort submitted behind a batch writes behind it: a word both use ends with the abort's value. */
START_TEST(abort_comes_behind_a_batch)
{
    struct rig rig = open_cpu();
    struct dc *c = batch_of(&rig, 20000);
    uint64_t word = 0;
    struct be_done_word done = {&word, 6};
    c->done = &done;
    c->n_done = 1;
    struct ticket a = {
        .request = {.op = BE_ABORT, .abort = {.word = &word, .value = 7 + (UINT64_C(1) << 62), .code = MLA_CANCELLED}}};
    dc_launch(c);
    rig_submit(&rig, &a);
    dc_wait(c);
    rig_wait(&rig, &a);
    ck_assert_uint_gt(a.ended_at, c->ticket.ended_at);
    ck_assert_uint_eq(word, 7 + (UINT64_C(1) << 62));
    dc_free(c);
    rig_close(&rig);
}
END_TEST

/* Batches submitted together run in their order, each with its two events. */
START_TEST(batches_in_order)
{
    struct rig rig = open_cpu();
    struct dc *c[4];
    for (int i = 0; i < 4; i++)
        c[i] = batch_of(&rig, 300);
    for (int i = 0; i < 4; i++)
        dc_launch(c[i]);
    for (int i = 0; i < 4; i++)
        dc_wait(c[i]);
    for (int i = 1; i < 4; i++) {
        ck_assert_uint_gt(c[i]->ticket.submitted_at, c[i - 1]->ticket.ended_at);
        ck_assert_uint_ge(c[i]->batch.started_ns, c[i - 1]->batch.ended_ns);
    }
    for (int i = 0; i < 4; i++)
        dc_free(c[i]);
    rig_close(&rig);
}
END_TEST

START_TEST(a_batch_of_nothing)
{
    struct rig rig = open_cpu();
    uint64_t word = 0;
    struct be_done_word done = {&word, 1};
    struct plan plan = {0};
    struct be_batch batch = {.plan = &plan, .done = &done, .n_done = 1};
    struct ticket t = {.request = {.op = BE_LAUNCH, .batch = &batch}};
    rig_submit(&rig, &t);
    rig_wait(&rig, &t);
    ck_assert_uint_eq(word, 1);
    rig_close(&rig);
}
END_TEST

static bool readable(const struct be *be)
{
    struct pollfd p = {.fd = be_event_fd(be), .events = POLLIN};
    return poll(&p, 1, 0) == 1;
}

/* More requests than the rings hold, nobody polling: submit says so, nothing is lost, and the descriptor is readable
 * for as long as something is left. */
START_TEST(full_rings)
{
    enum { N = 5000 };
    struct rig rig = open_cpu();
    struct ticket nothing = watch(NULL, 0);
    struct be_request *requests = calloc(N, sizeof *requests);
    size_t sent = 0, seen = 0;
    int refused = 0;
    while (sent < N && !refused) {
        requests[sent] = (struct be_request){.op = BE_UNWATCH, .unwatch = &nothing.request};
        int rc = be_submit(&rig.be, &requests[sent]);
        ck_assert(rc == 0 || rc == -EAGAIN);
        refused = rc == -EAGAIN;
        sent += rc == 0;
    }
    ck_assert_int_eq(refused, 1);
    while (seen < sent) {
        struct pollfd p = {.fd = be_event_fd(&rig.be), .events = POLLIN};
        ck_assert_int_eq(poll(&p, 1, 5000), 1);
        struct be_event events[7];
        size_t n = be_poll(&rig.be, events, 7);
        for (size_t i = 0; i < n; i++, seen++) {
            ck_assert_int_eq(events[i].kind, BE_DONE);
            ck_assert_ptr_eq(events[i].request, &requests[seen]);
        }
    }
    ck_assert(!readable(&rig.be));
    free(requests);
    rig_close(&rig);
}
END_TEST

START_TEST(descriptor_clears)
{
    struct rig rig = open_cpu();
    uint64_t word = 1;
    struct ticket w[3];
    for (int i = 0; i < 3; i++) {
        w[i] = watch(&word, 1);
        rig_submit(&rig, &w[i]);
    }
    sleep_ms(100);
    struct be_event events[8];
    ck_assert(readable(&rig.be));
    ck_assert_uint_eq(be_poll(&rig.be, events, 2), 2);
    ck_assert(readable(&rig.be));
    ck_assert_uint_eq(be_poll(&rig.be, events, 1), 1);
    ck_assert_ptr_eq(events[0].request, &w[2].request);
    ck_assert(!readable(&rig.be));
    ck_assert_uint_eq(be_poll(&rig.be, events, 8), 0);
    rig_close(&rig);
}
END_TEST

static double cpu_seconds(void)
{
    struct rusage u;
    getrusage(RUSAGE_SELF, &u);
    return (double)u.ru_utime.tv_sec + 1e-6 * (double)u.ru_utime.tv_usec + (double)u.ru_stime.tv_sec +
           1e-6 * (double)u.ru_stime.tv_usec;
}

/* Nothing to do costs nothing, a word that does not come next to nothing, and the counter goes on in both. */
START_TEST(idle_is_cheap_and_alive)
{
    struct rig rig = open_cpu();
    uint64_t word = 0;
    struct ticket w = watch(&word, 1);
    for (int with_watch = 0; with_watch < 2; with_watch++) {
        if (with_watch)
            rig_submit(&rig, &w);
        sleep_ms(200);
        uint64_t progress = be_progress(&rig.be);
        double cpu = cpu_seconds();
        sleep_ms(1500);
        cpu = cpu_seconds() - cpu;
        ck_assert_uint_gt(be_progress(&rig.be), progress);
        ck_assert_msg(cpu < 0.15, "%.3f s of CPU in 1.5 s of idleness", cpu);
    }
    rig_close(&rig); /* the watch ends silently */
}
END_TEST

START_TEST(broken_contracts_are_refused)
{
    struct rig rig = open_cpu();
    struct be_region r = {.address = 4096, .kind = MLA_REGION_MEMFD};
    struct be_region page = {.kind = MLA_REGION_MEMFD, .access = MLA_ACCESS_READ, .sync = true};
    struct plan too_large = {.workspace_bytes = (16u << 20) + 1};
    struct be_batch batch = {.plan = &too_large};
    struct be_batch no_plan = {0};
    struct be_request bad[] = {
        {.op = 0},
        {.op = (enum be_op)99},
        {.op = BE_MAP},
        {.op = BE_MAP, .region = &r},
        {.op = BE_MAP, .region = &page},
        {.op = BE_UNMAP},
        {.op = BE_WATCH},
        {.op = BE_UNWATCH},
        {.op = BE_ABORT},
        {.op = BE_LAUNCH},
        {.op = BE_LAUNCH, .batch = &no_plan},
        {.op = BE_LAUNCH, .batch = &batch},
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        ck_assert_int_eq(be_submit(&rig.be, &bad[i]), -EINVAL);
    ck_assert_uint_eq(rig_poll(&rig, 20), 0);
    ck_assert_ptr_null(be_find("abacus"));
    rig_close(&rig);
}
END_TEST

MLA_SUITE(be_device)
{
    TCase *tc = mla_tcase(suite, "words");
    tcase_add_test(tc, facts_are_filled);
    tcase_add_test(tc, word_comes);
    tcase_add_test(tc, abort_value);
    tcase_add_test(tc, unwatch_ends_a_watch);
    tcase_add_test(tc, abort_writes_status_then_word);
    tc = mla_tcase_timeout(suite, "order", 60);
    tcase_add_test(tc, beside_a_batch);
    tcase_add_test(tc, abort_comes_behind_a_batch);
    tcase_add_test(tc, batches_in_order);
    tcase_add_test(tc, a_batch_of_nothing);
    tcase_add_test(tc, full_rings);
    tcase_add_test(tc, descriptor_clears);
    tcase_add_test(tc, idle_is_cheap_and_alive);
    tcase_add_test(tc, broken_contracts_are_refused);
}
