/* A fault of one sequence: its status says which and where; nothing else of the launch changes by a bit. */
#include <string.h>

#include "tests/support/check_main.h"
#include "tests/support/decode_case.h"

/* Two jobs of three sequences each over several tiles; what is asked of them: see run_with_fault(). */
struct faulty {
    struct dc *c;
    struct dc_job *job[2];
    struct dc_bits before[2];
};

static void faulty_make(struct faulty *f, struct rig *rig, enum dc_place place, uint32_t mask, uint32_t splits)
{
    f->c = dc_new(rig);
    for (int i = 0; i < 2; i++)
        f->job[i] = dc_add(f->c, &(struct dc_shape){.heads = 96,
                                                    .n_seqs = 3,
                                                    .seqs = SEQS({4, 400}, {4, 500}, {1, 300}),
                                                    .table = place,
                                                    .kv_len = DC_REGION,
                                                    .visible = place,
                                                    .mask = mask,
                                                    .user_status = i == 0,
                                                    .ref_head_step = 40,
                                                    .seed = 10 + (uint64_t)i});
    f->c->request.splits = splits;
    dc_run(f->c);
    for (int i = 0; i < 2; i++) {
        dc_check(f->job[i]);
        f->before[i] = dc_bits(f->job[i]);
    }
}

/* Sequence 1 of job 0 must fault with want; all five others are bit-equal to the same plan without the fault. */
static void run_with_fault(struct faulty *f, uint64_t want)
{
    dc_run(f->c);
    ck_assert_msg(f->job[0]->status[1] == want, "status %#llx, right is %#llx",
                  (unsigned long long)f->job[0]->status[1], (unsigned long long)want);
    for (int i = 0; i < 2; i++) {
        const uint64_t skip[2][3] = {{0, 1, 0}, {0, 0, 0}};
        struct dc_bits after = dc_bits(f->job[i]);
        dc_check(f->job[i]);
        dc_assert_same(&f->before[i], &after, skip[i], "a sequence beside the faulty one");
        dc_bits_free(&after);
    }
    ck_assert_uint_eq(f->job[0]->status[0], 0);
    ck_assert_uint_eq(f->job[0]->status[2], 0);
}

static void faulty_free(struct faulty *f)
{
    dc_bits_free(&f->before[0]);
    dc_bits_free(&f->before[1]);
    dc_free(f->c);
}

/* K8: a needed entry of num_pages or 0xffffffff, one or several: the status names the smallest bad index, whichever
 * split meets it, for tables on the host and in a region. */
START_TEST(k8_page_out_of_range)
{
    struct rig rig;
    if (!rig_open(&rig, _i))
        return;
    for (uint32_t splits = 1; splits <= 4; splits += 3) {
        struct faulty f;
        faulty_make(&f, &rig, splits == 1 ? DC_HOST : DC_REGION, MLA_MASK_CAUSAL, splits);
        int32_t *entry = f.job[0]->table + f.job[0]->table_first[1];
        int32_t good[8];
        memcpy(good, entry, sizeof(good));
        const int32_t outside[] = {(int32_t)f.job[0]->shape.num_pages, -1, INT32_MIN, INT32_MAX};
        for (size_t i = 0; i < 4; i++) {
            entry[5] = outside[i];
            run_with_fault(&f, dc_fault(MLA_PAGE_OUT_OF_RANGE, 5));
            entry[2] = outside[3 - i];
            entry[7] = outside[i];
            run_with_fault(&f, dc_fault(MLA_PAGE_OUT_OF_RANGE, 2));
            entry[0] = outside[i];
            run_with_fault(&f, dc_fault(MLA_PAGE_OUT_OF_RANGE, 0));
            memcpy(entry, good, sizeof(good));
            entry[7] = outside[i]; /* the last needed one: keys 448 .. 499 */
            run_with_fault(&f, dc_fault(MLA_PAGE_OUT_OF_RANGE, 7));
            memcpy(entry, good, sizeof(good));
        }
        entry[7] = (int32_t)f.job[0]->shape.num_pages - 1; /* the largest good id */
        run_with_fault(&f, 0);
        faulty_free(&f);
    }
    rig_close(&rig);
}
END_TEST

/* K8, smallest index: the second half's first page is met while the first half is still busy with good ones; the fault
 * that ends the first half comes later and names the smaller index. */
START_TEST(k8_smallest_index_of_concurrent_splits)
{
    struct rig rig;
    if (!rig_open(&rig, _i))
        return;
    struct faulty f;
    faulty_make(&f, &rig, DC_REGION, MLA_MASK_CAUSAL, 2);
    int32_t *entry = f.job[0]->table + f.job[0]->table_first[1];
    uint32_t half = 0;
    for (uint32_t i = 0; i < f.c->plan.n_items; i++) { /* where the plan cuts that sequence's first tile */
        const struct mla_abi_item *item = &f.c->plan.items[i];
        if (f.c->plan.tiles[item->tile].seq == 1 && item->page_begin > half)
            half = item->page_begin;
    }
    ck_assert_uint_gt(half, 1);
    entry[half - 1] = -1;
    entry[half] = -1;
    for (int i = 0; i < 10; i++)
        run_with_fault(&f, dc_fault(MLA_PAGE_OUT_OF_RANGE, half - 1));
    faulty_free(&f);
    rig_close(&rig);
}
END_TEST

/* K8 under VISIBLE: an entry is needed when a token sees a key of it, wherever the length ends. */
START_TEST(k8_page_out_of_range_under_visible)
{
    struct rig rig;
    if (!rig_open(&rig, _i))
        return;
    struct faulty f;
    faulty_make(&f, &rig, DC_REGION, MLA_MASK_VISIBLE, 3);
    struct dc_job *j = f.job[0];
    j->visible[j->first_token[1]] = 500; /* the first token sees every page */
    j->table[j->table_first[1] + 3] = -1;
    j->table[j->table_first[1] + 6] = -1;
    run_with_fault(&f, dc_fault(MLA_PAGE_OUT_OF_RANGE, 3));
    for (uint32_t t = 0; t < 4; t++)
        j->visible[j->first_token[1] + t] = (int32_t)(192 - t);
    run_with_fault(&f, 0); /* no token sees a page of those entries */
    j->visible[j->first_token[1] + 3] = 193;
    run_with_fault(&f, dc_fault(MLA_PAGE_OUT_OF_RANGE, 3));
    faulty_free(&f);
    rig_close(&rig);
}
END_TEST

/* A device length above its bound or below 0. */
START_TEST(k24a_length_out_of_range)
{
    struct rig rig;
    if (!rig_open(&rig, _i))
        return;
    for (uint32_t splits = 1; splits <= 4; splits += 3) {
        struct faulty f;
        faulty_make(&f, &rig, DC_HOST, MLA_MASK_CAUSAL, splits);
        const int32_t bad[] = {501, -1, INT32_MAX, INT32_MIN};
        for (size_t i = 0; i < 4; i++) {
            f.job[0]->kv_len[1] = bad[i];
            run_with_fault(&f, dc_fault(MLA_KV_LEN_OUT_OF_RANGE, 0));
        }
        f.job[0]->kv_len[1] = 500;
        run_with_fault(&f, 0);
        faulty_free(&f);
    }
    rig_close(&rig);
}
END_TEST

/* A visible count above the length or below 0: the status names the first such token of the sequence. */
START_TEST(visible_out_of_range)
{
    struct rig rig;
    if (!rig_open(&rig, _i))
        return;
    for (int place = DC_HOST; place <= DC_REGION; place++) {
        struct faulty f;
        faulty_make(&f, &rig, (enum dc_place)place, MLA_MASK_VISIBLE, place == DC_HOST ? 1 : 4);
        int32_t *counts = f.job[0]->visible + f.job[0]->first_token[1];
        int32_t good = counts[2];
        counts[2] = 501;
        run_with_fault(&f, dc_fault(MLA_VISIBLE_OUT_OF_RANGE, 2));
        counts[3] = -7;
        run_with_fault(&f, dc_fault(MLA_VISIBLE_OUT_OF_RANGE, 2));
        counts[2] = good;
        run_with_fault(&f, dc_fault(MLA_VISIBLE_OUT_OF_RANGE, 3));
        counts[3] = 500;
        run_with_fault(&f, 0);
        faulty_free(&f);
    }
    rig_close(&rig);
}
END_TEST

/* tokens_per_entry 128: an entry is good when the pages it is needed for are inside the cache. With an odd number of
 * pages the last entry has one page: enough for a context that ends in it, a fault for one that goes on. */
START_TEST(last_entry_of_an_odd_cache)
{
    struct rig rig;
    if (!rig_open(&rig, _i))
        return;
    for (uint32_t kv_len = 64; kv_len <= 65; kv_len++) {
        struct dc *c = dc_new(&rig);
        struct dc_job *j = dc_add(c, &(struct dc_shape){.heads = 8,
                                                        .n_seqs = 2,
                                                        .seqs = SEQS({1, kv_len}, {1, 128}),
                                                        .mask = MLA_MASK_NONE,
                                                        .pages_per_entry = 2,
                                                        .num_pages = 6,
                                                        .page_ids = (const int32_t[]){2, 0},
                                                        .seed = 11});
        j->ref.num_pages = 5; /* the pool is larger than what the job declares */
        j->shape.num_pages = 5;
        dc_run(c);
        ck_assert_uint_eq(j->status[0], kv_len == 64 ? 0 : dc_fault(MLA_PAGE_OUT_OF_RANGE, 0));
        dc_check(j);
        dc_free(c);
    }
    rig_close(&rig);
}
END_TEST

/* Faults of several sequences in one launch are each reported, and the next launch starts clean. */
START_TEST(many_faults_and_a_clean_launch_after)
{
    struct rig rig;
    if (!rig_open(&rig, _i))
        return;
    struct dc *c = dc_new(&rig);
    struct dc_job *j = dc_add(c, &(struct dc_shape){.heads = 16,
                                                    .n_seqs = 5,
                                                    .seqs = SEQS({1, 100}, {2, 200}, {3, 300}, {1, 64}, {1, 1}),
                                                    .kv_len = DC_REGION,
                                                    .table = DC_REGION,
                                                    .user_status = true,
                                                    .seed = 12});
    int32_t good0 = j->table[j->table_first[0] + 1];
    int32_t good4 = j->table[j->table_first[4]];
    j->table[j->table_first[0] + 1] = -5;
    j->kv_len[2] = 301;
    j->table[j->table_first[4]] = (int32_t)j->shape.num_pages;
    dc_run(c);
    ck_assert_uint_eq(j->status[0], dc_fault(MLA_PAGE_OUT_OF_RANGE, 1));
    ck_assert_uint_eq(j->status[1], 0);
    ck_assert_uint_eq(j->status[2], dc_fault(MLA_KV_LEN_OUT_OF_RANGE, 0));
    ck_assert_uint_eq(j->status[3], 0);
    ck_assert_uint_eq(j->status[4], dc_fault(MLA_PAGE_OUT_OF_RANGE, 0));
    dc_check(j);
    j->table[j->table_first[0] + 1] = good0;
    j->table[j->table_first[4]] = good4;
    j->kv_len[2] = 300;
    dc_run(c);
    dc_check(j);
    dc_free(c);
    rig_close(&rig);
}
END_TEST

MLA_SUITE(backend_faults)
{
    TCase *tc = mla_tcase(suite, "faults of sequences");
    rig_add(tc, k8_page_out_of_range);
    rig_add(tc, k8_smallest_index_of_concurrent_splits);
    rig_add(tc, k8_page_out_of_range_under_visible);
    rig_add(tc, k24a_length_out_of_range);
    rig_add(tc, visible_out_of_range);
    rig_add(tc, last_entry_of_an_odd_cache);
    rig_add(tc, many_faults_and_a_clean_launch_after);
}
