/* Launches in a row: right and bit-equal whatever is in front. On the fake driver and on a GPU. */
#include <stdlib.h>
#include <string.h>

#include "tests/support/check_main.h"
#include "tests/support/decode_case.h"
#include "tests/unit/test_be_cuda.h"

#define CASES 7u
#define WORD  8u /* 64-bit words to the next cache line */

static struct dc *new_case(struct rig *rig, const struct dc_shape *shape, uint32_t splits)
{
    struct dc *c = dc_new(rig);
    dc_add(c, shape);
    c->request.splits = splits;
    dc_plan(c);
    c->batch.plan_id = shape->seed;
    return c;
}

/* Much to prepare and little to do, and the other way round; split and not; a fault; lengths on the device, which fall
 * short of what is planned; one that decodes nothing; few rows, which have kernels of their own. */
static void new_cases(struct rig *rig, struct dc *c[CASES])
{
    struct dc_seq many[40], wide[3] = {{8, 500, 0}, {4, 1900, 0}, {8, 64, 0}};
    for (uint32_t s = 0; s < 40; s++)
        many[s] = (struct dc_seq){1 + s % 2, 70 + 60 * (s % 4), 0};
    c[0] = new_case(
        rig,
        &(struct dc_shape){
            .heads = 16, .n_seqs = 40, .seqs = many, .pages = DC_ALIAS, .num_pages = 9, .user_status = true, .seed = 1},
        0);
    c[1] = new_case(rig, &(struct dc_shape){.heads = 96, .n_seqs = 3, .seqs = wide, .ref_head_step = 31, .seed = 2}, 3);
    c[2] = new_case(rig,
                    &(struct dc_shape){.heads = 96,
                                       .n_seqs = 1,
                                       .seqs = SEQS({4, 3000}),
                                       .ref_head_step = 31,
                                       .out_type = MLA_ABI_OUT_BF16,
                                       .seed = 3},
                    16);
    c[3] = new_case(rig,
                    &(struct dc_shape){.heads = 32,
                                       .n_seqs = 3,
                                       .seqs = SEQS({2, 90, 400}, {1, 400, 400}, {1, 0, 70}),
                                       .kv_len = DC_REGION,
                                       .table = DC_REGION,
                                       .user_status = true,
                                       .seed = 4},
                    2);
    c[4] = new_case(rig,
                    &(struct dc_shape){.heads = 48,
                                       .n_seqs = 2,
                                       .seqs = SEQS({2, 300}, {2, 250}),
                                       .table = DC_REGION,
                                       .user_status = true,
                                       .seed = 5},
                    2);
    c[4]->jobs[0]->table[c[4]->jobs[0]->table_first[1] + 2] = 1 << 20; /* beyond the plane */
    c[5] = new_case(
        rig,
        &(struct dc_shape){.heads = 16, .n_seqs = 2, .seqs = SEQS({0, 100}, {0, 5}), .user_status = true, .seed = 6},
        0);
    c[6] = new_case(rig, &(struct dc_shape){.heads = 8, .n_seqs = 2, .seqs = SEQS({1, 700}, {2, 64}), .seed = 7}, 3);
}

/* Any of them behind any other, eight at a time, none of which the driver is told of anew. */
START_TEST(any_behind_any)
{
    ck_assert_int_eq(setenv("MLA_CUDA_BLOB", _i == 1 ? "inline" : "", 1), 0);
    struct rig rig = cuda_rig();
    struct mem page;
    struct mla_fake_report report;
    struct dc *c[CASES];
    struct dc_bits alone[CASES];
    uint64_t statuses[CASES][40];
    struct be_done_word done[CASES];
    struct prng prng = {_i + 1};
    const int rounds = cuda_fake_report(&report) ? 2 : 400;
    mem_take(&rig, &page, &mem_memfd, 4096, MEM_SYNC);
    new_cases(&rig, c);
    for (uint32_t i = 0; i < CASES; i++) {
        done[i] = (struct be_done_word){(uint64_t *)page.region.host + i * WORD, 1};
        c[i]->done = &done[i];
        c[i]->n_done = i % 2; /* some end without */
        dc_run(c[i]);
        dc_check_all(c[i]);
        alone[i] = dc_bits(c[i]->jobs[0]);
        memcpy(statuses[i], c[i]->jobs[0]->status, c[i]->n_seqs * sizeof(uint64_t));
    }
    for (int round = 0; round < rounds; round++) {
        uint32_t order[CASES];
        for (uint32_t i = 0; i < CASES; i++) {
            uint32_t other = prng_below(&prng, i + 1);
            order[i] = order[other];
            order[other] = i;
            done[i].value++;
            dc_ready(c[i]);
        }
        for (uint32_t i = 0; i < CASES; i++)
            dc_submit(c[order[i]]);
        for (uint32_t i = 0; i < CASES; i++) {
            uint32_t k = order[i];
            dc_wait(c[k]);
            if (c[k]->n_done != 0)
                ck_assert_uint_eq(__atomic_load_n(done[k].word, __ATOMIC_ACQUIRE), done[k].value);
        }
        for (uint32_t i = 0; i < CASES; i++) {
            struct dc_bits now = dc_bits(c[i]->jobs[0]);
            dc_assert_same(&alone[i], &now, statuses[i], "behind others");
            dc_bits_free(&now);
            ck_assert_mem_eq(c[i]->jobs[0]->status, statuses[i], c[i]->n_seqs * sizeof(uint64_t));
            if (c[i]->jobs[0]->user_status)
                ck_assert_mem_eq(c[i]->jobs[0]->user_status, statuses[i], c[i]->n_seqs * sizeof(uint64_t));
        }
    }
    for (uint32_t i = 0; i < CASES; i++) {
        dc_check_all(c[i]);
        dc_bits_free(&alone[i]);
        dc_free(c[i]);
    }
    mem_drop(&rig, &page);
    rig_close(&rig);
}
END_TEST

/* Outputs of one batch are inputs of the next but one, through a worker's copy between them: what a done word promises
 * is there, all of it, when the word is seen. Here the copy is of all bits, taken as soon as the word has come. */
START_TEST(all_is_there_with_the_word)
{
    struct rig rig = cuda_rig();
    struct mem page;
    struct mla_fake_report report;
    struct dc *c[2];
    struct dc_bits alone[2];
    struct be_done_word done[2];
    const int rounds = cuda_fake_report(&report) ? 3 : 500;
    mem_take(&rig, &page, &mem_memfd, 4096, MEM_SYNC);
    for (uint32_t i = 0; i < 2; i++) {
        c[i] = new_case(
            &rig,
            &(struct dc_shape){
                .heads = 96, .n_seqs = 2, .seqs = SEQS({4, 900}, {8, 400}), .ref_head_step = 31, .seed = 20 + i},
            4);
        done[i] = (struct be_done_word){(uint64_t *)page.region.host + i * WORD, 1};
        c[i]->done = &done[i];
        c[i]->n_done = 1;
        dc_run(c[i]);
        dc_check_all(c[i]);
        alone[i] = dc_bits(c[i]->jobs[0]);
    }
    for (int round = 0; round < rounds; round++) {
        for (uint32_t i = 0; i < 2; i++) {
            done[i].value++;
            dc_ready(c[i]);
        }
        for (uint32_t i = 0; i < 2; i++)
            dc_submit(c[i]);
        for (uint32_t i = 0; i < 2; i++) {
            while (__atomic_load_n(done[i].word, __ATOMIC_ACQUIRE) != done[i].value)
                rig_poll(&rig, 0);
            dc_pull(c[i]);
            struct dc_bits now = dc_bits(c[i]->jobs[0]);
            dc_assert_same(&alone[i], &now, NULL, "as soon as the word has come");
            dc_bits_free(&now);
        }
        for (uint32_t i = 0; i < 2; i++)
            rig_wait(&rig, &c[i]->ticket);
    }
    for (uint32_t i = 0; i < 2; i++) {
        dc_bits_free(&alone[i]);
        dc_free(c[i]);
    }
    mem_drop(&rig, &page);
    rig_close(&rig);
}
END_TEST

MLA_SUITE(be_cuda_row)
{
    TCase *tc = mla_tcase_timeout(suite, "row", 120);
    tcase_add_loop_test(tc, any_behind_any, 0, 2);
    tcase_add_test(tc, all_is_there_with_the_word);
}
