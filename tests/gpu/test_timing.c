/* Times for orientation and for the cost model's constants; no benchmark, nothing is judged. */
#include <stdio.h>
#include <stdlib.h>

#include "tests/gpu/rig_library.h"
#include "tests/support/check_main.h"
#include "tests/support/decode_case.h"

#define ROUNDS 20

/* Microseconds of a launch: its graph, replayed back to back; the caches hold what 20 replays leave there. */
static double time_graph(void)
{
    CUevent from;
    CUevent to;
    float ms;
    LIB_OK(cuEventCreate(&from, CU_EVENT_DEFAULT));
    LIB_OK(cuEventCreate(&to, CU_EVENT_DEFAULT));
    for (int i = 0; i < 3; i++)
        LIB_OK(cuGraphLaunch(lib.exec, lib.stream));
    LIB_OK(cuEventRecord(from, lib.stream));
    for (int i = 0; i < ROUNDS; i++)
        LIB_OK(cuGraphLaunch(lib.exec, lib.stream));
    LIB_OK(cuEventRecord(to, lib.stream));
    LIB_OK(cuEventSynchronize(to));
    LIB_OK(cuEventElapsedTime(&ms, from, to));
    LIB_OK(cuEventDestroy(from));
    LIB_OK(cuEventDestroy(to));
    return 1e3 * ms / ROUNDS;
}

static double timed(struct rig *rig, uint32_t n_seqs, uint32_t q_len, uint32_t heads, uint32_t kv_len, uint32_t splits)
{
    static struct dc_seq seqs[256];
    uint32_t pages = (kv_len + 63) / 64;
    int32_t *ids = malloc((size_t)n_seqs * pages * sizeof(*ids));
    ck_assert_ptr_nonnull(ids);
    for (uint32_t s = 0; s < n_seqs; s++)
        seqs[s] = (struct dc_seq){.q_len = q_len, .kv_len = kv_len};
    for (uint32_t i = 0; i < n_seqs * pages; i++)
        ids[i] = (int32_t)i;
    struct dc *c = dc_new(rig);
    dc_add(c, &(struct dc_shape){.heads = heads,
                                 .n_seqs = n_seqs,
                                 .seqs = seqs,
                                 .page_ids = ids,
                                 .out_type = MLA_DTYPE_E4M3,
                                 .out_scale = 0.01f,
                                 .no_lse = true,
                                 .sparse = true});
    c->request.splits = splits;
    lib.mode = LIB_CAPTURE;
    dc_run(c);
    double us = time_graph();
    double flop = 2.0 * n_seqs * q_len * heads * kv_len * (576 + 512);
    printf("%-20s B%-3u Q%u H%-3u KV%-7u splits<=%-3u items %-5u %10.1f us %8.1f TFLOP/s  model %.1f us\n",
           rig->facts->name, n_seqs, q_len, heads, kv_len, c->plan.max_splits, c->plan.n_items, us, flop / us * 1e-6,
           (double)c->plan.predicted_ns * 1e-3);
    lib.mode = LIB_DIRECT;
    dc_free(c);
    free(ids);
    return us;
}

START_TEST(for_orientation)
{
    struct rig rig;
    if (!rig_open(&rig, _i))
        return;
    timed(&rig, 4, 4, 96, 65536, 0);
    timed(&rig, 1, 4, 96, 65536, 0);
    timed(&rig, 1, 1, 12, 4096, 0);

    /* Slopes: one CTA alone, and as many as run at a time, over 64 and 256 pages. */
    uint32_t full = rig.facts->device.resident_units / 4;
    double alone = timed(&rig, 1, 1, 64, 256 * 64, 1) - timed(&rig, 1, 1, 64, 64 * 64, 1);
    double first = timed(&rig, full, 2, 128, 64 * 64, 1);
    double busy = timed(&rig, full, 2, 128, 256 * 64, 1) - first;
    double split = timed(&rig, full / 2, 2, 128, 128 * 64, 2) - first;
    printf("%-20s page: alone %.0f ns, all units busy %.0f ns; rest of a launch %.1f us; split and reduced: +%.1f us\n",
           rig.facts->name, alone * 1e3 / 192, busy * 1e3 / 192, first - 64 * busy / 192, split);
    rig_close(&rig);
}
END_TEST

MLA_SUITE(timing)
{
    TCase *tc = mla_tcase_timeout(suite, "timing", 300);
    rig_add(tc, for_orientation);
}
