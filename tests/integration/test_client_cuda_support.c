#include "tests/integration/test_client_cuda.h"

#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/support/fake_cuda/fake_cuda.h"
#include "tests/support/fp8.h"

void worker_status(const struct worker *w, enum mla_status got, enum mla_status want, const char *call)
{
    const struct mla_error_info *e = mla_last_error(w->client);
    ck_assert_msg(got == want, "%s: %s, not %s; field '%s', value %llu, limit %llu: %s", call, mla_errname(got),
                  mla_errname(want), e->field, (unsigned long long)e->value, (unsigned long long)e->limit, e->text);
}

bool worker_is_fake(void)
{
    const char *driver = getenv("MLA_CUDA_DRIVER");
    return driver && *driver;
}

/* ---- the daemon ---- */

static pid_t run_daemon(const struct worker *w, const char *fake)
{
    pid_t pid = fork();
    ck_assert_int_ge(pid, 0);
    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL); /* a test that fails leaves nothing behind */
        setenv("MLA_FAKE_CUDA", fake, 1);
        execl(mla_test_path("mlad", MLA_TEST_MLAD), "mlad", "--socket", w->socket, "--backend", "cuda", "--log-level",
              "warning", "--set", "device.workspace_bytes=16M", (char *)NULL);
        _exit(127);
    }
    return pid;
}

static void connect_to(struct worker *w)
{
    struct mla_options o;
    struct mla_error_info e;
    mla_options_init(&o);
    o.recover_us = 0;
    o.socket_path = w->socket;
    o.timeout_us = LONG_US;
    o.flags = MLA_OPEN_WAIT;
    ck_assert_msg(mla_open(&o, &w->client, &e) == MLA_OK, "%s", e.text);
}

void worker_start(struct worker *w, const char *daemon_fake)
{
    char why[200], fake[400];
    CUdevice device;
    CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE}};
    memset(w, 0, sizeof(*w));
    snprintf(w->dir, sizeof(w->dir), "/tmp/mla-cuda-XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(w->dir));
    snprintf(w->socket, sizeof(w->socket), "%s/s", w->dir);
    snprintf(fake, sizeof(fake), "report=%s;%s", w->dir, daemon_fake);
    w->daemon = run_daemon(w, fake);
    ck_assert_msg(cuda_driver_open(NULL, &w->cu, why, sizeof(why)) == 0, "%s", why);
    OK(w->cu.cuDeviceGet(&device, 0));
    OK(w->cu.cuDevicePrimaryCtxRetain(&w->context, device));
    OK(w->cu.cuCtxSetCurrent(w->context));
    OK(w->cu.cuStreamCreate(&w->stream, CU_STREAM_NON_BLOCKING));
    OK(w->cu.cuMemGetAllocationGranularity(&w->granularity, &prop, CU_MEM_ALLOC_GRANULARITY_MINIMUM));
    connect_to(w);
}

void worker_kill_daemon(struct worker *w)
{
    ck_assert_int_eq(kill(w->daemon, SIGKILL), 0);
    ck_assert_int_eq(waitpid(w->daemon, NULL, 0), w->daemon);
    w->daemon = 0;
}

static void remove_dir(const struct worker *w)
{
    char command[128];
    snprintf(command, sizeof(command), "rm -rf '%s'", w->dir);
    ck_assert_int_eq(system(command), 0);
}

void worker_stop(struct worker *w)
{
    mla_close(w->client);
    w->client = NULL;
    if (w->daemon) {
        int status = 0;
        ck_assert_int_eq(kill(w->daemon, SIGTERM), 0);
        ck_assert_int_eq(waitpid(w->daemon, &status, 0), w->daemon);
        ck_assert_msg(WIFEXITED(status) && WEXITSTATUS(status) == 0, "the daemon ended with %#x", (unsigned)status);
        daemon_holds_no_memory(w);
    }
    OK(w->cu.cuStreamDestroy(w->stream));
    remove_dir(w);
}

void daemon_holds_no_memory(const struct worker *w)
{
#ifdef MLA_TEST_FAKE
    struct mla_fake_report report;
    if (!worker_is_fake() || !w->daemon)
        return;
    ck_assert_int_eq(mla_fake_report_read(w->dir, w->daemon, &report), 0);
    ck_assert_uint_eq(report.ipc_mappings, 0);
    ck_assert_uint_eq(report.ipc_opens, 0);
    ck_assert_uint_eq(report.vmm_mappings, 0);
    ck_assert_uint_eq(report.vmm_reservations, 0);
    ck_assert_uint_eq(report.vmm_handles, 0);
#else
    (void)w;
#endif
}

/* ---- device memory ---- */

void vmm_make(struct worker *w, struct vmm *v, size_t n, bool exportable)
{
    CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                .requestedHandleTypes =
                                    exportable ? CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR : CU_MEM_HANDLE_TYPE_NONE,
                                .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE}};
    const CUmemAccessDesc access = {.location = prop.location, .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    *v = (struct vmm){.bytes = n * w->granularity, .n = n, .part_bytes = w->granularity};
    OK(w->cu.cuMemAddressReserve(&v->address, v->bytes, 0, 0, 0));
    for (size_t i = 0; i < n; i++) {
        CUmemGenericAllocationHandle handle;
        OK(w->cu.cuMemCreate(&handle, v->part_bytes, &prop, 0));
        OK(w->cu.cuMemMap(v->address + i * v->part_bytes, v->part_bytes, 0, handle, 0));
        OK(w->cu.cuMemRelease(handle)); /* as engines do: the mapping keeps it */
    }
    OK(w->cu.cuMemSetAccess(v->address, v->bytes, &access, 1));
}

void vmm_free(struct worker *w, struct vmm *v)
{
    for (size_t i = 0; i < v->n; i++)
        OK(w->cu.cuMemUnmap(v->address + i * v->part_bytes, v->part_bytes));
    OK(w->cu.cuMemAddressFree(v->address, v->bytes));
}

static uint8_t bits_of(size_t page, double start)
{
    return fp8_encode(start + (double)page / 4.0);
}

double value_of(size_t page, double start)
{
    return fp8_decode(bits_of(page, start));
}

void fill_pages(struct worker *w, CUdeviceptr first, size_t stride, size_t n, double start)
{
    for (size_t i = 0; i < n; i++)
        OK(w->cu.cuMemsetD8Async(first + i * stride, bits_of(i, start), PAGE_BYTES, w->stream));
    OK(w->cu.cuStreamSynchronize(w->stream));
}

/* ---- decodes ---- */

enum { Q_BYTES = SEQS_MAX * HEADS * ROW_BYTES, O_BYTES = SEQS_MAX * HEADS * O_ROW };

void rows_make(struct worker *w, struct rows *r)
{
    r->bytes = Q_BYTES + O_BYTES;
    OK(w->cu.cuMemAlloc(&r->memory, r->bytes));
    OK(w->cu.cuMemsetD8Async(r->memory, 0, Q_BYTES, w->stream));
    OK(w->cu.cuMemsetD8Async(r->memory + Q_BYTES, 0xa5, O_BYTES, w->stream));
    OK(w->cu.cuStreamSynchronize(w->stream));
    MLA(w, mla_cuda_region_register(w->client, r->memory, r->bytes, MLA_ACCESS_READ_WRITE, "rows", LONG_US, &r->region),
        MLA_OK);
}

void rows_free(struct worker *w, struct rows *r)
{
    MLA(w, mla_region_unregister(w->client, r->region, LONG_US), MLA_OK);
    OK(w->cu.cuMemFree(r->memory));
}

void put_tables(struct worker *w, mla_tables_id id, const uint32_t *pages, size_t n)
{
    uint32_t q_len[SEQS_MAX], kv_len[SEQS_MAX];
    struct mla_tables t;
    ck_assert_uint_le(n, SEQS_MAX);
    for (size_t i = 0; i < n; i++) {
        q_len[i] = 1;
        kv_len[i] = 64;
    }
    mla_tables_init(&t);
    t.id = id;
    t.n_seqs = n;
    t.q_len = q_len;
    t.kv_len_max = kv_len;
    t.entries = pages;
    t.n_entries = n;
    MLA(w, mla_tables_put(w->client, &t, LONG_US), MLA_OK);
}

struct mla_decode_args decode_args(mla_cache_id cache, mla_tables_id tables, const struct rows *r)
{
    struct mla_decode_args a;
    mla_decode_args_init(&a);
    a.cache = cache;
    a.tables = tables;
    a.heads = HEADS;
    a.q = (struct mla_view){
        .region = r->region, .token_stride = HEADS * ROW_BYTES, .head_stride = ROW_BYTES, .compact = true};
    a.o = (struct mla_view){
        .region = r->region, .offset = Q_BYTES, .token_stride = HEADS * O_ROW, .head_stride = O_ROW, .compact = true};
    a.out_type = MLA_DTYPE_F32;
    a.softmax_scale = 1.0f / 24.0f;
    return a;
}

void check_rows(struct worker *w, const struct rows *r, size_t n, double start)
{
    static float o[SEQS_MAX * HEADS * 512];
    OK(w->cu.cuMemcpyDtoHAsync(o, r->memory + Q_BYTES, n * HEADS * O_ROW, w->stream));
    OK(w->cu.cuStreamSynchronize(w->stream));
    for (size_t s = 0; s < n; s++) {
        for (size_t i = 0; i < HEADS * 512; i++)
            ck_assert_msg(fabs((double)o[s * HEADS * 512 + i] - value_of(s, start)) < 1e-2 * value_of(s, start),
                          "sequence %zu, element %zu: %g, not %g", s, i, (double)o[s * HEADS * 512 + i],
                          value_of(s, start));
    }
}
