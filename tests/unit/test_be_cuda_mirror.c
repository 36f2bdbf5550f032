/* Copies in device memory of what kernels would read from the host at every launch: the memory, the request, and
 * launches and layers that read them. On the fake driver, where a device address is one of this process, too. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/backend/cuda/device_arena.h"
#include "daemon/util/clock.h"
#include "tests/support/check_main.h"
#include "tests/support/prng.h"
#include "tests/unit/test_be_cuda_step.h"

#define BLOCK_BYTES ((size_t)CU_CHUNKS * CU_CHUNK_BYTES)
#define BASE        (UINT64_C(1) << 40)
#define PIECES      64

/* ---- memory ---- */

static struct cu_device_arena arena;

START_TEST(all_of_it_and_no_more)
{
    cu_device_arena_init(&arena, BASE);
    ck_assert_uint_eq(cu_device_arena_alloc(&arena, BLOCK_BYTES + 1), 0);
    ck_assert_uint_eq(cu_device_arena_alloc(&arena, SIZE_MAX), 0);
    ck_assert_uint_eq(cu_device_arena_alloc(&arena, BLOCK_BYTES), BASE);
    ck_assert_uint_eq(cu_device_arena_alloc(&arena, 0), 0);
    cu_device_arena_free(&arena, BASE, BLOCK_BYTES);
    ck_assert_uint_eq(cu_device_arena_alloc(&arena, 0), BASE);
    ck_assert_uint_eq(cu_device_arena_alloc(&arena, BLOCK_BYTES - CU_CHUNK_BYTES), BASE + CU_CHUNK_BYTES);
    ck_assert_uint_eq(cu_device_arena_alloc(&arena, 0), 0);
}
END_TEST

/* Enough in all, but not side by side: looked for once, until something comes back. */
START_TEST(room_in_pieces_is_none)
{
    cu_device_arena_init(&arena, BASE);
    for (uint32_t i = 0; i < CU_CHUNKS; i++)
        ck_assert_uint_eq(cu_device_arena_alloc(&arena, CU_CHUNK_BYTES), BASE + (uint64_t)i * CU_CHUNK_BYTES);
    for (uint32_t i = 0; i < CU_CHUNKS; i += 2)
        cu_device_arena_free(&arena, BASE + (uint64_t)i * CU_CHUNK_BYTES, 1);
    ck_assert_uint_eq(cu_device_arena_alloc(&arena, CU_CHUNK_BYTES + 1), 0);
    ck_assert_uint_eq(arena.most, 1);
    ck_assert_uint_eq(cu_device_arena_alloc(&arena, CU_CHUNK_BYTES), BASE);
    cu_device_arena_free(&arena, BASE + 63 * CU_CHUNK_BYTES, 1);
    ck_assert_uint_eq(cu_device_arena_alloc(&arena, 3 * CU_CHUNK_BYTES), BASE + 62 * CU_CHUNK_BYTES);
}
END_TEST

/* Whatever is taken and given back in whatever order: pieces do not meet, and all comes back. */
START_TEST(random_use)
{
    static uint8_t owner[CU_CHUNKS];
    struct {
        uint64_t address;
        size_t bytes;
    } live[PIECES] = {{0}};
    struct prng prng = {12};
    unsigned taken = 0, refused = 0, met = 0;
    cu_device_arena_init(&arena, BASE);
    for (int round = 0; round < 20000; round++) {
        size_t i = prng_below(&prng, PIECES);
        bool gives = live[i].address != 0;
        if (!gives) {
            live[i].bytes = prng_below(&prng, 1u << prng_below(&prng, 25));
            live[i].address = cu_device_arena_alloc(&arena, live[i].bytes);
            taken += live[i].address != 0;
            refused += live[i].address == 0;
        }
        size_t first = (live[i].address - BASE) / CU_CHUNK_BYTES, n = live[i].bytes / CU_CHUNK_BYTES;
        n += live[i].bytes % CU_CHUNK_BYTES != 0 || live[i].bytes == 0;
        for (size_t chunk = first; live[i].address != 0 && chunk < first + n; chunk++) {
            met += owner[chunk] != (gives ? i + 1 : 0);
            owner[chunk] = gives ? 0 : (uint8_t)(i + 1);
        }
        if (gives) {
            cu_device_arena_free(&arena, live[i].address, live[i].bytes);
            live[i].address = 0;
        }
    }
    ck_assert_uint_eq(met, 0);
    ck_assert(taken > 5000 && refused > 100);
    for (size_t i = 0; i < PIECES; i++)
        if (live[i].address != 0)
            cu_device_arena_free(&arena, live[i].address, live[i].bytes);
    ck_assert_uint_eq(cu_device_arena_alloc(&arena, BLOCK_BYTES), BASE);
}
END_TEST

/* ---- the request ---- */

static struct ticket ticket_of(const void *from, uint64_t to, size_t bytes)
{
    return (struct ticket){.request = {.op = BE_MIRROR, .mirror = {.from = from, .to = to, .bytes = bytes}}};
}

static enum mla_status mirror(struct rig *rig, const void *from, uint64_t to, size_t bytes)
{
    struct ticket t = ticket_of(from, to, bytes);
    rig_submit(rig, &t);
    rig_wait(rig, &t);
    return t.error.code;
}

static void *view(uint64_t device)
{
    return (void *)(uintptr_t)device;
}

/* Host memory with bytes in it, and as much of the device's. */
struct pair {
    unsigned char *from;
    uint64_t to;
    size_t bytes;
};

static struct pair pair_new(struct rig *rig, size_t bytes)
{
    uint64_t address;
    struct pair p = {.from = be_host_alloc(&rig->be, bytes, &address), .bytes = bytes};
    p.to = be_device_alloc(&rig->be, bytes);
    ck_assert(p.from != NULL && p.to != 0);
    for (size_t i = 0; i < bytes; i++)
        p.from[i] = (unsigned char)(i * 7 + 1);
    return p;
}

static void pair_free(struct rig *rig, struct pair *p)
{
    be_device_free(&rig->be, p->to, p->bytes);
    be_host_free(&rig->be, p->from);
}

/* One at a time; the second does not harm the first. */
START_TEST(one_at_a_time)
{
    struct rig rig = cuda_rig();
    struct pair a = pair_new(&rig, 100000), b = pair_new(&rig, 5);
    struct ticket first = ticket_of(a.from, a.to, a.bytes);
    memset(view(a.to), 0, a.bytes);
    ck_assert(cuda_fake_rules("copy=delay 200"));
    rig_submit(&rig, &first);
    ck_assert_int_eq(mirror(&rig, b.from, b.to, b.bytes), MLA_BUSY);
    ck_assert_uint_eq(first.ended_at, 0);
    rig_wait(&rig, &first);
    ck_assert(cuda_fake_rules(""));
    ck_assert_int_eq(first.error.code, MLA_OK);
    ck_assert_int_eq(mirror(&rig, b.from, b.to, b.bytes), MLA_OK);
    ck_assert_mem_eq(view(a.to), a.from, a.bytes);
    ck_assert_mem_eq(view(b.to), b.from, b.bytes);
    pair_free(&rig, &a);
    pair_free(&rig, &b);
    rig_close(&rig);
}
END_TEST

/* A thread that has nothing else to do hears of the end soon. */
START_TEST(an_idle_thread_looks)
{
    struct rig rig = cuda_rig();
    struct pair p = pair_new(&rig, 5);
    ck_assert(cuda_fake_rules("copy=delay 20"));
    uint64_t from = mla_now_ns();
    for (int i = 0; i < 5; i++)
        ck_assert_int_eq(mirror(&rig, p.from, p.to, p.bytes), MLA_OK);
    ck_assert_uint_lt(mla_now_ns() - from, 1500 * MLA_NS_PER_MS); /* else half a second each */
    pair_free(&rig, &p);
    rig_close(&rig);
}
END_TEST

/* What the driver refuses is not there, and that is all. */
START_TEST(a_refusal_is_no_loss)
{
    struct rig rig = cuda_rig();
    struct pair p = pair_new(&rig, 5);
    ck_assert(cuda_fake_rules("cuMemcpyHtoDAsync@1=fail INVALID_VALUE;cuMemcpyHtoDAsync@2=fail OUT_OF_MEMORY"));
    ck_assert_int_eq(mirror(&rig, p.from, p.to, p.bytes), MLA_INTERNAL);
    ck_assert_int_eq(mirror(&rig, p.from, p.to, p.bytes), MLA_INTERNAL);
    ck_assert_int_eq(mirror(&rig, p.from, p.to, p.bytes), MLA_OK);
    ck_assert_mem_eq(view(p.to), p.from, p.bytes);
    pair_free(&rig, &p);
    rig_close(&rig);
}
END_TEST

/* What the copy reads and writes stays until it has ended; the fake driver looks. */
START_TEST(closed_meanwhile)
{
    struct rig rig = cuda_rig();
    struct pair p = pair_new(&rig, 5);
    struct ticket t = ticket_of(p.from, p.to, p.bytes);
    struct mla_fake_report before, now;
    ck_assert(cuda_fake_report(&before));
    ck_assert(cuda_fake_rules("copy=delay 200"));
    rig_submit(&rig, &t);
    WAIT_UNTIL(&rig, cuda_fake_report(&now) && now.calls[MLA_FAKE_copy] > before.calls[MLA_FAKE_copy]);
    rig_close(&rig);
    ck_assert(cuda_fake_report(&now));
    ck_assert_uint_eq(now.allocations, 0);
}
END_TEST

START_TEST(contract)
{
    struct rig rig = cuda_rig();
    struct pair p = pair_new(&rig, 5);
    const struct ticket wrong[] = {ticket_of(NULL, p.to, 5), ticket_of(p.from, 0, 5), ticket_of(p.from, p.to, 0)};
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        struct be_request request = wrong[i].request;
        ck_assert_int_eq(be_submit(&rig.be, &request), -EINVAL);
    }
    ck_assert_uint_eq(be_device_alloc(&rig.be, BLOCK_BYTES), 0);
    pair_free(&rig, &p);
    uint64_t all = be_device_alloc(&rig.be, BLOCK_BYTES);
    ck_assert_uint_ne(all, 0);
    be_device_free(&rig.be, all, BLOCK_BYTES);
    /* A backend without. */
    struct be null;
    struct mla_error err;
    struct be_request request = wrong[0].request;
    request.mirror.from = &rig;
    ck_assert_int_eq(be_open(&null, be_find("null"), &(struct be_config){.workspace_bytes = 1 << 20}, &err), 0);
    ck_assert_uint_eq(be_device_alloc(&null, 5), 0);
    ck_assert_int_eq(be_submit(&null, &request), -EINVAL);
    be_close(&null);
    rig_close(&rig);
}
END_TEST

/* ---- launches ---- */

/* The page tables of a case of one job, in both places. */
struct tables {
    struct dc *c;
    struct dc_job *job;
    uint64_t host, device;
    size_t bytes;
    void *right;
};

static void tables_copy(struct tables *t)
{
    t->device = be_device_alloc(&t->c->rig->be, t->bytes);
    ck_assert_uint_ne(t->device, 0);
    ck_assert_int_eq(mirror(t->c->rig, t->job->table_mem.host, t->device, t->bytes), MLA_OK);
    ck_assert_mem_eq(view(t->device), t->right, t->bytes);
}

static struct tables tables_of(struct dc *c)
{
    struct tables t = {.c = c, .job = c->jobs[0]};
    t.host = t.job->table_mem.address;
    t.bytes = t.job->table_mem.bytes;
    t.right = malloc(t.bytes);
    ck_assert_ptr_nonnull(t.right);
    memcpy(t.right, t.job->table_mem.host, t.bytes);
    t.job->keep_reference = true;
    return t;
}

static void tables_drop(struct tables *t)
{
    be_device_free(&t->c->rig->be, t->device, t->bytes);
    free(t->right);
}

/* One place has the tables, the other one page ids that are none: whoever reads there faults. */
static void tables_are_at(struct tables *t, bool device)
{
    memcpy(device ? view(t->device) : (void *)t->job->table_mem.host, t->right, t->bytes);
    memset(device ? (void *)t->job->table_mem.host : view(t->device), 0x7f, t->bytes);
}

static struct dc *new_case(struct rig *rig)
{
    struct dc *c = dc_new(rig);
    dc_add(c, &(struct dc_shape){.heads = 16, .n_seqs = 2, .seqs = SEQS({2, 300}, {2, 170}), .seed = 1});
    c->request.splits = 2;
    dc_plan(c);
    c->batch.plan_id = 1;
    return c;
}

/* The address changes between launches of one plan from one place, as graphs and by themselves, records copied or
 * brought: each reads the tables where its record says that they are. */
START_TEST(the_address_changes)
{
    enum { MAKES = 3, N = 16 };
    ck_assert_int_eq(setenv("MLA_CUDA_GRAPHS", _i < 2 ? "3" : "0", 1), 0);
    ck_assert_int_eq(setenv("MLA_CUDA_BLOB", _i % 2 == 0 ? "" : "copied", 1), 0);
    struct rig rig = cuda_rig();
    struct dc *c = new_case(&rig);
    struct tables t = tables_of(c);
    struct mla_abi_job *record = (void *)c->job_records.host;
    struct mla_fake_report before, after;
    ck_assert_uint_eq(record->table, t.host);
    dc_run(c);
    dc_check_all(c); /* the reference is of these */
    tables_copy(&t);
    ck_assert(cuda_fake_report(&before));
    for (unsigned i = 0; i < N; i++) {
        bool device = i / 2 % 2 == 0;
        record->table = device ? t.device : t.host;
        tables_are_at(&t, device);
        dc_run(c);
        dc_check_all(c);
    }
    ck_assert(cuda_fake_report(&after));
    ck_assert_uint_eq(after.calls[MLA_FAKE_cuGraphLaunch] - before.calls[MLA_FAKE_cuGraphLaunch],
                      _i < 2 ? N - MAKES + 1 : 0);
    tables_drop(&t);
    dc_free(c);
    rig_close(&rig);
}
END_TEST

/* Neither waits for the other. */
START_TEST(beside_launches)
{
    struct rig rig = cuda_rig();
    struct pair p = pair_new(&rig, 100000);
    struct dc *c = new_case(&rig);
    dc_run(c);
    struct ticket t = ticket_of(p.from, p.to, p.bytes);
    ck_assert(cuda_fake_rules("copy=delay 1000"));
    rig_submit(&rig, &t);
    dc_run(c);
    ck_assert_uint_eq(t.ended_at, 0);
    rig_wait(&rig, &t);
    ck_assert(cuda_fake_rules("kernel=delay 200"));
    dc_launch(c);
    ck_assert_int_eq(mirror(&rig, p.from, p.to, p.bytes), MLA_OK);
    ck_assert_uint_eq(c->ticket.ended_at, 0);
    dc_wait(c);
    ck_assert(cuda_fake_rules(""));
    dc_check_all(c);
    dc_free(c);
    pair_free(&rig, &p);
    rig_close(&rig);
}
END_TEST

/* Nor do records that are copied beside a launch. */
START_TEST(beside_copies_of_records)
{
    ck_assert_int_eq(setenv("MLA_CUDA_BLOB", "copied", 1), 0);
    struct rig rig = cuda_rig();
    struct pair p = pair_new(&rig, 100000);
    struct dc *c[2] = {new_case(&rig), new_case(&rig)};
    struct ticket t = ticket_of(p.from, p.to, p.bytes);
    dc_run(c[0]);
    for (int i = 0; i < 2; i++)
        dc_ready(c[i]);
    struct mla_fake_report before, now;
    ck_assert(cuda_fake_report(&before));
    ck_assert(cuda_fake_rules("copy@1=delay 2000;kernel=delay 20"));
    rig_submit(&rig, &t);
    WAIT_UNTIL(&rig, cuda_fake_report(&now) && now.calls[MLA_FAKE_copy] > before.calls[MLA_FAKE_copy]);
    for (int i = 0; i < 2; i++)
        dc_submit(c[i]);
    for (int i = 0; i < 2; i++)
        dc_wait(c[i]);
    ck_assert_uint_eq(t.ended_at, 0);
    rig_wait(&rig, &t);
    for (int i = 0; i < 2; i++) {
        dc_check_all(c[i]);
        dc_free(c[i]);
    }
    pair_free(&rig, &p);
    rig_close(&rig);
}
END_TEST

/* ---- layers ---- */

static void layers_run(struct stepper *s)
{
    for (uint32_t i = 0; i < LAYERS; i++) {
        uint64_t calls;
        do { /* until its prepare kernel has run, if it does in front of the word */
            calls = step_calls(MLA_FAKE_cuLaunchKernelEx);
            for (int ms = 0; ms < 20; ms++)
                rig_poll(s->rig, 1);
        } while (calls != step_calls(MLA_FAKE_cuLaunchKernelEx));
        step_layer(s, i);
    }
    step_ends_well(s);
}

/* Steps whose tables are here, then there, then here again: with each, layers are written ahead, and the prepare kernel
 * runs in front of the word, as what it reads stays as it is in either place. */
START_TEST(layers_in_turn)
{
    ck_assert_int_eq(setenv("MLA_CUDA_GRAPHS", _i == 0 ? "0" : "2", 1), 0);
    struct rig rig = step_rig();
    struct stepper s;
    struct tables t[LAYERS];
    step_make(&s, &rig, 20);
    for (uint32_t i = 0; i < LAYERS; i++)
        t[i] = tables_of(s.layers[i]);
    step_warm_up(&rig);
    for (unsigned round = 0; round < 6; round++) {
        for (uint32_t i = 0; i < LAYERS && round > 0; i++) {
            if (round == 1)
                tables_copy(&t[i]);
            bool device = round % 3 != 0;
            tables_are_at(&t[i], device);
            s.records[i].job.table = device ? t[i].device : t[i].host;
        }
        be_step_clear(&s.step);
        step_again(&s);
        layers_run(&s);
        ck_assert_uint_eq(s.step.work.ahead, LAYERS);
    }
    for (uint32_t i = 0; i < LAYERS; i++)
        tables_drop(&t[i]);
    step_drop(&s);
    rig_close(&rig);
}
END_TEST

MLA_SUITE(be_cuda_mirror)
{
    TCase *tc = mla_tcase(suite, "memory");
    tcase_add_test(tc, all_of_it_and_no_more);
    tcase_add_test(tc, room_in_pieces_is_none);
    tcase_add_test(tc, random_use);
    tc = mla_tcase(suite, "request");
    tcase_add_test(tc, one_at_a_time);
    tcase_add_test(tc, an_idle_thread_looks);
    tcase_add_test(tc, a_refusal_is_no_loss);
    tcase_add_test(tc, closed_meanwhile);
    tcase_add_test(tc, contract);
    tc = mla_tcase(suite, "launches");
    tcase_add_loop_test(tc, the_address_changes, 0, 4);
    tcase_add_test(tc, beside_launches);
    tcase_add_test(tc, beside_copies_of_records);
    tcase_add_loop_test(tc, layers_in_turn, 0, 2);
}
