/* libmla-kernels: opening, captured graphs, repeats, splits, many faults at once. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/gpu/rig_library.h"
#include "tests/support/check_main.h"
#include "tests/support/decode_case.h"

START_TEST(facts_of_the_device)
{
    struct rig rig;
    if (!rig_open(&rig, _i))
        return;
    const struct mla_kernels_facts *facts = mla_kernels_facts(lib.kernels);
    printf("%s: %s, compute capability %d, %u SMs, %u units of %u rows, %s\n", facts->variant, facts->device_name,
           facts->compute_capability, facts->device.sms, facts->device.resident_units, facts->device.rows_per_unit,
           facts->file);
    ck_assert_int_ge(facts->compute_capability, 80);
    ck_assert_uint_gt(facts->device.sms, 0);
    ck_assert_uint_ge(facts->device.resident_units, facts->tile_rows / facts->device.rows_per_unit);
    if (facts->device.ctas_per_unit == 1) /* clusters may leave SMs over */
        ck_assert_uint_eq(facts->device.resident_units % facts->device.sms, 0);
    else
        ck_assert_uint_le(facts->device.resident_units * facts->device.ctas_per_unit, facts->device.sms);
    ck_assert_int_eq(strncmp(facts->gpu_uuid, "GPU-", 4), 0);
    ck_assert_uint_eq(strlen(facts->gpu_uuid), 40);
    ck_assert_ptr_nonnull(strstr(facts->file, facts->variant));
    rig_close(&rig);
}
END_TEST

static void refused(const struct mla_kernels_options *options, int want, const char *words)
{
    struct mla_kernels *kernels = NULL;
    char why[1024] = "";
    int rc = mla_kernels_open(&lib.driver, options, &kernels, why, sizeof(why));
    ck_assert_msg(rc == want && kernels == NULL, "%d instead of %d: %s", rc, want, why);
    ck_assert_msg(strstr(why, words) != NULL, "\"%s\" does not say \"%s\"", why, words);
}

static void write_file(const char *directory, const char *name, const char *text)
{
    char path[512];
    snprintf(path, sizeof(path), "%s/%s", directory, name);
    FILE *file = fopen(path, "we");
    ck_assert_ptr_nonnull(file);
    ck_assert_int_ge(fputs(text, file), 0);
    ck_assert_int_eq(fclose(file), 0);
}

static void write_manifest(const char *directory, unsigned abi, unsigned min_capability, const char *more)
{
    char text[1024];
    snprintf(text, sizeof(text),
             "[x]\nabi = %u\narch = any\nmin_compute_capability = %u\nmax_compute_capability = 9999\n"
             "decode_file = d.ptx\ndecode_entry = d\ndecode_threads = 256\ndecode_shared_bytes = 1024\n"
             "tile_rows = 256\nrows_per_unit = 64\nctas_per_unit = 1\nmin_pages_per_split = 8\nmax_pages_per_item = 0\n"
             "reduce_file = r.ptx\nreduce_entry = r\nreduce_threads = 128\nreduce_ctas_per_tile = 64\n"
             "launch_ns = 1\nfill_ns = 1\npage_ns = 1\ndrain_ns = 1\npartial_ns = 1\nreduce_launch_ns = 1\n"
             "reduce_bytes_per_us = 1\nreduce_fixed_ns = 1\n%s",
             abi, min_capability, more);
    write_file(directory, "kernels.ini", text);
}

START_TEST(what_is_wrong_is_said)
{
    char directory[] = "/tmp/mla-kernels-test-XXXXXX";
    ck_assert_ptr_nonnull(mkdtemp(directory));
    lib_context();
    struct mla_kernels_options options = {.size = sizeof(options), .directory = directory};
    refused(&options, -ENOENT, directory);
    write_file(directory, "kernels.ini", "[x]\nnonsense = 1\n");
    refused(&options, -EINVAL, "kernels.ini:2: unknown key nonsense");
    write_manifest(directory, MLA_ABI_VERSION + 1, 80, "");
    refused(&options, -EINVAL, "kernel ABI");
    write_manifest(directory, MLA_ABI_VERSION, 9999, "");
    refused(&options, -ENOTSUP, "no section fits");
    write_manifest(directory, MLA_ABI_VERSION, 80, "");
    write_manifest(directory, MLA_ABI_VERSION, 80, "by_name_only = 1\n");
    refused(&options, -ENOTSUP, "no section fits");
    options.variant = "x";
    refused(&options, -ENOENT, "r.ptx");
    write_manifest(directory, MLA_ABI_VERSION, 80, "by_name_only = 0\n");
    options.variant = "y";
    refused(&options, -ENOTSUP, "no section y fits");
    options.variant = NULL;
    refused(&options, -ENOENT, "r.ptx");
    write_file(directory, "r.ptx", "this is no kernel");
    refused(&options, -EIO, "r.ptx of [x]");
    options.size = 4;
    refused(&options, -EINVAL, "options");
    const char *const files[] = {"kernels.ini", "r.ptx"};
    for (size_t i = 0; i < 2; i++) {
        char path[512];
        snprintf(path, sizeof(path), "%s/%s", directory, files[i]);
        ck_assert_int_eq(unlink(path), 0);
    }
    ck_assert_int_eq(rmdir(directory), 0);
    LIB_OK(cuDevicePrimaryCtxRelease(lib.device));
}
END_TEST

struct units_section {
    const char *name;
    uint32_t tile_rows, rows, most_pages;
    const char *more; /* a line, or NULL */
};

static const struct units_section few_of_x = {"x", 256, 128, 2048, "few_rows = y\n"};

/* Sections of kernels that share out units. */
static void write_sections(const char *directory, const struct units_section *sections, size_t n)
{
    char text[8192];
    size_t at = 0;
    for (size_t i = 0; i < n; i++) {
        const struct units_section *s = &sections[i];
        at += (size_t)snprintf(
            text + at, sizeof(text) - at,
            "[%s]\nabi = %u\narch = any\nmin_compute_capability = 80\nmax_compute_capability = 9999\n"
            "prepare_file = p.ptx\nprepare_entry = mla_prepare\nprepare_threads = 128\n"
            "decode_file = d.ptx\ndecode_entry = mla_decode_sm90\ndecode_threads = 256\ndecode_shared_bytes = 1024\n"
            "tile_rows = %u\nrows_per_unit = %u\nctas_per_unit = 1\nmin_pages_per_split = 8\n"
            "max_pages_per_item = %u\nreduce_file = p.ptx\nreduce_entry = mla_reduce\nreduce_threads = 128\n"
            "reduce_ctas_per_tile = 64\nlaunch_ns = 1\nfill_ns = 1\npage_ns = 1\ndrain_ns = 1\npartial_ns = 1\n"
            "reduce_launch_ns = 1\nreduce_bytes_per_us = 1\nreduce_fixed_ns = 1\n%s",
            s->name, MLA_ABI_VERSION, s->tile_rows, s->rows, s->most_pages, s->more != NULL ? s->more : "");
        ck_assert_uint_lt(at, sizeof(text));
    }
    write_file(directory, "kernels.ini", text);
}

START_TEST(what_is_wrong_with_few_rows_is_said)
{
    char directory[] = "/tmp/mla-kernels-test-XXXXXX", path[512];
    ck_assert_ptr_nonnull(mkdtemp(directory));
    lib_context();
    struct mla_kernels_options options = {.size = sizeof(options), .directory = directory};
    struct units_section s[3] = {few_of_x};
    write_sections(directory, s, 1);
    refused(&options, -EINVAL, "few_rows of [x] is y, which is no section");
    s[0].more = "few_rows = x\n";
    write_sections(directory, s, 1);
    refused(&options, -EINVAL, "few_rows of [x] is [x]");
    s[0].more = "few_rows = \n";
    write_sections(directory, s, 1);
    refused(&options, -EINVAL, "empty, too long or a path: few_rows");
    const struct units_section unlike[] = {
        {"y", 256, 128, 2048, NULL}, {"y", 128, 64, 2048, NULL}, {"y", 256, 64, 0, NULL}};
    s[0] = few_of_x;
    s[2] = (struct units_section){"z", 256, 32, 2048, NULL};
    for (size_t i = 0; i < sizeof(unlike) / sizeof(unlike[0]); i++) {
        s[1] = unlike[i];
        write_sections(directory, s, 3);
        refused(&options, -EINVAL, "few_rows of [x] is [y], which has");
    }
    struct units_section many[9];
    char names[9][2], more[9][16];
    for (size_t i = 0; i < 9; i++) {
        snprintf(names[i], sizeof(names[i]), "%c", (int)('a' + i));
        snprintf(more[i], sizeof(more[i]), "few_rows = %c\n", (int)('b' + i));
        many[i] = (struct units_section){names[i], 256, 128 - (uint32_t)i, 2048, i < 8 ? more[i] : NULL};
    }
    write_sections(directory, many, 9);
    refused(&options, -EINVAL, "few_rows of [a]: more than 8 sections");
    snprintf(path, sizeof(path), "%s/kernels.ini", directory);
    ck_assert_int_eq(unlink(path), 0);
    ck_assert_int_eq(rmdir(directory), 0);
    LIB_OK(cuDevicePrimaryCtxRelease(lib.device));
}
END_TEST

/* The tuned kernels come with those for few rows, wherever both fit. */
START_TEST(few_rows_come_along)
{
    lib_context();
    struct mla_kernels_options options = {.size = sizeof(options)};
    struct mla_kernels *kernels = NULL;
    char why[1024] = "";
    ck_assert_msg(mla_kernels_open(&lib.driver, &options, &kernels, why, sizeof(why)) == 0, "%s", why);
    const struct mla_kernels_facts *facts = mla_kernels_facts(kernels);
    struct mla_kernels *few = mla_kernels_few_rows(kernels);
    struct plan_seq seqs[] = {{4, 70000}, {4, 1000}};
    struct plan_job job = {.n_seqs = 2};
    struct plan_request request = {.heads = 12, .jobs = &job, .seqs = seqs, .n_jobs = 1, .n_seqs = 2};
    static const struct {
        const char *variant;
        uint32_t rows, ctas;
    } kinds[] = {{"sm90-96", 96, 2}, {"sm90-64", 64, 1}, {"sm90-48", 48, 1}, {"sm90-32", 32, 1}};
    ck_assert_int_eq(few != NULL, strcmp(facts->variant, "sm90") == 0);
    for (size_t i = 0; few != NULL && i < sizeof(kinds) / sizeof(kinds[0]); i++) {
        const struct mla_kernels_facts *of_few = mla_kernels_facts(few);
        char file[32];
        snprintf(file, sizeof(file), "/%s.cubin", kinds[i].variant);
        ck_assert_str_eq(of_few->variant, kinds[i].variant);
        ck_assert_ptr_nonnull(strstr(of_few->file, file));
        ck_assert_str_eq(of_few->gpu_uuid, facts->gpu_uuid);
        ck_assert_uint_eq(of_few->device.rows_per_unit, kinds[i].rows);
        ck_assert_uint_eq(of_few->device.ctas_per_unit, kinds[i].ctas);
        ck_assert_uint_eq(of_few->device.resident_units, of_few->device.sms / kinds[i].ctas);
        ck_assert_uint_eq(of_few->tile_rows, facts->tile_rows);
        request.heads = kinds[i].rows / 4;
        ck_assert_ptr_eq(mla_kernels_for(kernels, &request), few);
        few = mla_kernels_few_rows(few);
    }
    ck_assert_ptr_null(few);
    request.heads = 96;
    ck_assert_ptr_eq(mla_kernels_for(kernels, &request), kernels);
    mla_kernels_close(kernels);
    LIB_OK(cuDevicePrimaryCtxRelease(lib.device));
}
END_TEST

/* Every kind that the library may take by itself on this device, and its few_rows, is among what tests run for; here
 * all that fits opens by its name, too. */
START_TEST(all_kinds_are_tested)
{
    lib_context();
    struct mla_kernels_options options = {.size = sizeof(options)};
    struct mla_kernels *kernels = NULL;
    char why[1024] = "";
    int n = rig_backends(), seen = 0;
    ck_assert_msg(mla_kernels_open(&lib.driver, &options, &kernels, why, sizeof(why)) == 0, "%s", why);
    int compute_capability = mla_kernels_facts(kernels)->compute_capability;
    for (struct mla_kernels *k = kernels; k != NULL; k = mla_kernels_few_rows(k))
        for (int i = 0; i < n; i++)
            seen += strcmp(lib_variant(i), mla_kernels_facts(k)->variant) == 0;
    int kinds = 0;
    for (struct mla_kernels *k = kernels; k != NULL; k = mla_kernels_few_rows(k))
        kinds++;
    mla_kernels_close(kernels);
    if (getenv("MLA_TEST_VARIANT") == NULL) {
        ck_assert_int_eq(seen, kinds);
        ck_assert_int_ge(n, kinds + 1); /* the plain ones */
    }
    for (int i = 0; compute_capability == 90 && i < n; i++) {
        options.variant = lib_variant(i);
        ck_assert_msg(mla_kernels_open(&lib.driver, &options, &kernels, why, sizeof(why)) == 0, "%s", why);
        ck_assert_str_eq(mla_kernels_facts(kernels)->variant, options.variant);
        mla_kernels_close(kernels);
    }
    LIB_OK(cuDevicePrimaryCtxRelease(lib.device));
}
END_TEST

START_TEST(launches_without_work)
{
    struct rig rig;
    if (!rig_open(&rig, _i))
        return;
    CUresult result = CUDA_ERROR_UNKNOWN;
    struct mla_kernels_launch nothing = {0};
    ck_assert_int_eq(mla_kernels_launch(lib.kernels, lib.stream, &nothing, &result), 0);
    ck_assert_int_eq(result, CUDA_SUCCESS);
    struct mla_kernels_launch unnamed = {.abi.n_items = 1};
    ck_assert_int_eq(mla_kernels_launch(lib.kernels, lib.stream, &unnamed, NULL), -EINVAL);
    unnamed = (struct mla_kernels_launch){.abi.n_seqs = 1, .abi.flags = MLA_ABI_LAUNCH_USER_STATUS};
    ck_assert_int_eq(mla_kernels_launch(lib.kernels, lib.stream, &unnamed, NULL), -EINVAL);
    LIB_OK(cuStreamSynchronize(lib.stream));
    rig_close(&rig);
}
END_TEST

/* A launch is captured once; lengths, tables, inputs in device memory change between replays. */
START_TEST(captured_graph_follows_device_memory)
{
    struct rig rig;
    if (!rig_open(&rig, _i))
        return;
    struct dc *c = dc_new(&rig);
    struct dc_job *j = dc_add(c, &(struct dc_shape){.heads = 32,
                                                    .n_seqs = 4,
                                                    .seqs = SEQS({4, 700}, {1, 65}, {3, 1999, 2000}, {2, 0, 300}),
                                                    .kv_len = DC_REGION,
                                                    .table = DC_REGION,
                                                    .user_status = true,
                                                    .pages_per_entry = 2,
                                                    .num_pages = 64,
                                                    .ref_head_step = 5,
                                                    .seed = 77});
    c->request.splits = 3;
    lib.mode = LIB_CAPTURE;
    dc_run(c);
    dc_check(j);
    lib.mode = LIB_REPLAY;
    struct prng prng = {7};
    for (int round = 0; round < 20; round++) {
        for (uint32_t s = 0; s < 4; s++) {
            /* As short as nothing, as long as the bound, often near a page's edge. */
            uint32_t most = j->kv_len_max[s];
            uint32_t edge = 64 * prng_below(&prng, most / 64 + 1) + prng_below(&prng, 3);
            j->kv_len[s] = (int32_t)(round % 2 ? prng_below(&prng, most + 1) : edge < most ? edge : most);
            for (uint32_t e = 0; e < (most + 127) / 128; e++)
                j->table[j->table_first[s] + e] = (int32_t)prng_below(&prng, 32);
        }
        /* Whatever pages the tables name now hold numbers; all of the pool does. */
        for (size_t i = 0; i < (size_t)64 * 64 * 576; i++)
            j->kv[i] = (uint8_t)(prng_u64(&prng) % 0x50 | (i & 1) << 7);
        if (round == 13)
            j->kv_len[1] = -1;
        if (round == 17)
            j->table[j->table_first[0] + 1] = 32;
        dc_launch(c);
        dc_wait(c);
        dc_check(j);
    }
    lib.mode = LIB_DIRECT;
    dc_free(c);
    rig_close(&rig);
}
END_TEST

/* 1,000 launches, more items than units, in both forms: all bit-equal. */
START_TEST(thousand_repeats)
{
    struct rig rig;
    if (!rig_open(&rig, _i))
        return;
    struct dc *c = dc_new(&rig);
    struct dc_job *j = dc_add(c, &(struct dc_shape){.heads = 96,
                                                    .n_seqs = 3,
                                                    .seqs = SEQS({8, 2500}, {4, 1300}, {1, 4000}),
                                                    .out_type = MLA_DTYPE_BF16,
                                                    .ref_head_step = 31,
                                                    .seed = 1000});
    c->request.splits = 16;
    dc_run(c);
    ck_assert_uint_gt(c->plan.item_units, 2 * rig.facts->device.resident_units);
    dc_check(j);
    struct dc_bits first = dc_bits(j);
    for (int i = 0; i < 1000; i++) {
        lib.mode = i == 500 ? LIB_CAPTURE : i > 500 ? LIB_REPLAY : LIB_DIRECT;
        dc_run(c);
        struct dc_bits bits = dc_bits(j);
        dc_assert_same(&first, &bits, NULL, "the same launch again");
        dc_bits_free(&bits);
    }
    lib.mode = LIB_DIRECT;
    dc_bits_free(&first);
    dc_free(c);
    rig_close(&rig);
}
END_TEST

/* Every number of splits from 1 to 32, of contexts with shorter lengths on the device than planned. */
START_TEST(splits_1_to_32)
{
    struct rig rig;
    if (!rig_open(&rig, _i))
        return;
    struct dc *c = dc_new(&rig);
    struct dc_job *j = dc_add(c, &(struct dc_shape){.heads = 12,
                                                    .n_seqs = 3,
                                                    .seqs = SEQS({8, 2048}, {3, 1, 2048}, {7, 1333, 2048}),
                                                    .kv_len = DC_REGION,
                                                    .seed = 132});
    for (uint32_t splits = 1; splits <= 32; splits++) {
        dc_replan(c);
        c->request.splits = splits;
        dc_run(c);
        ck_assert_uint_eq(c->plan.max_splits, splits);
        dc_check(j);
        j->keep_reference = true;
    }
    dc_free(c);
    rig_close(&rig);
}
END_TEST

/* Many CTAs report faults of the same sequences at the same time: the smallest index stays. */
START_TEST(many_faults_at_once)
{
    struct rig rig;
    struct be_config config = {.workspace_bytes = 256u << 20};
    if (!rig_open_config(&rig, _i, &config))
        return;
    static struct dc_seq seqs[64];
    for (uint32_t s = 0; s < 64; s++)
        seqs[s] = (struct dc_seq){.q_len = 8, .kv_len = 2048};
    struct dc *c = dc_new(&rig);
    struct dc_job *j = dc_add(c, &(struct dc_shape){.heads = 96,
                                                    .n_seqs = 64,
                                                    .seqs = seqs,
                                                    .pages = DC_ALIAS,
                                                    .num_pages = 40,
                                                    .user_status = true,
                                                    .ref_head_step = 95,
                                                    .seed = 64});
    c->request.splits = 2;
    struct prng prng = {65};
    uint64_t want[64];
    for (uint32_t s = 0; s < 64; s++) {
        uint32_t smallest = 32;
        for (uint32_t n = 0; n < s % 8; n++) {
            uint32_t entry = prng_below(&prng, 32);
            j->table[j->table_first[s] + entry] = n % 2 ? -1 : 40;
            smallest = entry < smallest ? entry : smallest;
        }
        want[s] = smallest < 32 ? dc_fault(MLA_PAGE_OUT_OF_RANGE, smallest) : 0;
    }
    for (int round = 0; round < 20; round++) {
        dc_run(c);
        for (uint32_t s = 0; s < 64; s++) {
            ck_assert_msg(j->status[s] == want[s], "sequence %u: %#llx instead of %#llx", s,
                          (unsigned long long)j->status[s], (unsigned long long)want[s]);
            ck_assert_uint_eq(j->user_status[s], want[s]);
        }
    }
    dc_check(j);
    dc_free(c);
    rig_close(&rig);
}
END_TEST

static int write_records(struct dc *c, bool again, void *blob, uint64_t workspace, struct mla_kernels_launch *launch)
{
    const struct be_batch *b = &c->batch;
    return (again ? mla_kernels_blob_write_again : mla_kernels_blob_write)(
        lib.kernels, &c->plan, b->jobs, b->n_jobs, b->seqs, b->n_seqs, blob, UINT64_C(1) << 20, workspace, launch);
}

/* Jobs of equal plans that are otherwise unlike: what is written over the records of the others is, byte by byte, what
 * is written anew. */
START_TEST(records_written_again)
{
    struct rig rig;
    if (!rig_open(&rig, _i))
        return;
    const struct dc_seq *seqs = SEQS({4, 700}, {2, 0}, {1, 90}, {4, 3000});
    struct dc *c[2] = {dc_new(&rig), dc_new(&rig)};
    for (int k = 0; k < 2; k++) {
        dc_add(c[k], &(struct dc_shape){.heads = 96, .n_seqs = 2, .seqs = seqs, .seed = 1});
        dc_add(c[k], k == 0 ? &(struct dc_shape){.heads = 96, .n_seqs = 4, .seqs = seqs, .seed = 2}
                            : &(struct dc_shape){.heads = 96,
                                                 .n_seqs = 4,
                                                 .seqs = seqs,
                                                 .out_type = MLA_ABI_OUT_E4M3,
                                                 .q_scale = 2,
                                                 .out_scale = 3,
                                                 .q_layout = DC_SHTD,
                                                 .o_layout = DC_PADDED,
                                                 .split_rope = true,
                                                 .no_lse = true,
                                                 .user_status = true,
                                                 .table = DC_REGION,
                                                 .kv_len = DC_REGION,
                                                 .row_stride = 592,
                                                 .pages_per_entry = 2,
                                                 .seed = 3});
        dc_plan(c[k]);
    }
    const struct be_batch *b = &c[1]->batch;
    size_t bytes = mla_kernels_blob_bytes(lib.kernels, &c[1]->plan, b->n_jobs, b->n_seqs);
    ck_assert_uint_eq(mla_kernels_blob_bytes(lib.kernels, &c[0]->plan, b->n_jobs, b->n_seqs), bytes);
    void *fresh = calloc(1, bytes), *over = calloc(1, bytes);
    struct mla_kernels_launch first, anew, again;
    ck_assert_ptr_nonnull(fresh);
    ck_assert_ptr_nonnull(over);
    memset(&first, 0, sizeof(first));
    memset(&anew, 0, sizeof(anew));
    memset(&again, 0, sizeof(again));
    ck_assert_int_eq(write_records(c[1], false, fresh, UINT64_C(1) << 32, &anew), 0);
    ck_assert_int_eq(write_records(c[0], false, over, UINT64_C(1) << 33, &first), 0);
    ck_assert_int_ne(memcmp(fresh, over, bytes), 0);
    ck_assert_int_eq(write_records(c[1], true, over, UINT64_C(1) << 32, &again), 0);
    ck_assert_mem_eq(fresh, over, bytes);
    ck_assert_mem_eq(&anew, &again, sizeof(anew));
    free(fresh);
    free(over);
    dc_free(c[0]);
    dc_free(c[1]);
    rig_close(&rig);
}
END_TEST

/* These run on the fake driver too. */
MLA_SUITE(library_open)
{
    TCase *tc = mla_tcase(suite, "library_open");
    rig_add(tc, facts_of_the_device);
    tcase_add_test(tc, what_is_wrong_is_said);
    tcase_add_test(tc, what_is_wrong_with_few_rows_is_said);
    tcase_add_test(tc, few_rows_come_along);
    tcase_add_test(tc, all_kinds_are_tested);
    rig_add(tc, launches_without_work);
    rig_add(tc, records_written_again);
}

MLA_SUITE(library)
{
    TCase *tc = mla_tcase_timeout(suite, "library", 300);
    rig_add(tc, captured_graph_follows_device_memory);
    rig_add(tc, thousand_repeats);
    rig_add(tc, splits_1_to_32);
    rig_add(tc, many_faults_at_once);
}
