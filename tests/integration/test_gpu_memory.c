/* Device memory that is handed over twice, on the wrong GPU, in the wrong way, or is none. */
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "tests/support/check_main.h"
#include "tests/support/gpu_daemon.h"
#include "tests/support/raw_client.h"
#include "tests/support/worker_cuda.h"

#define TIB (UINT64_C(1) << 40)

static struct daemon d;
static struct raw r;
static char served[64]; /* the daemon's GPU, after greet() */

static void greet(void)
{
    raw_open(&r, d.socket);
    snprintf(served, sizeof(served), "%s", r.message.hello_reply.gpu_uuid);
    ck_assert_int_eq(strncmp(served, "GPU-", 4), 0);
}

/* ---- D10 ---- */

static mla_cache_id cache_on(struct mla_client *client, mla_region_id region, uint64_t num_pages)
{
    struct mla_cache_desc desc;
    mla_cache_id cache;
    mla_cache_desc_init(&desc);
    desc.region = region;
    desc.num_pages = num_pages;
    worker_ok(client, mla_cache_define(client, &desc, WORKER_TIMEOUT_US, &cache));
    return cache;
}

static int same_memory_twice(struct peer *parent, void *arg)
{
    (void)parent;
    worker_cuda_start();
    worker_cuda_form(*(const enum worker_form *)arg);
    struct mla_client *client = worker_open(d.socket, "twice");
    struct worker_pool pool;
    struct worker_job job;
    mla_region_id again;
    worker_pool_new(client, &pool, 8, 3);
    worker_ok(client, worker_ops->share(client, &pool.memory, pool.device, MLA_ACCESS_READ, "again", &again));
    ck_assert_uint_ne(again, pool.region);
    mla_cache_id cache = cache_on(client, again, 8);
    worker_job_new(client, &job, cache, pool.memory.addr, 8,
                   &(struct worker_shape){.heads = 16, .q_len = {2}, .kv_len = {400}, .seed = 5});
    worker_job_run(&job);
    worker_job_check(&job);
    worker_ok(client, mla_cache_drop(client, pool.cache, WORKER_TIMEOUT_US));
    worker_ok(client, mla_region_unregister(client, pool.region, WORKER_TIMEOUT_US));
    worker_expect(client, mla_region_unregister(client, pool.region, WORKER_TIMEOUT_US), MLA_NOT_FOUND);
    worker_job_run(&job); /* through the other */
    worker_job_check(&job);
    /* And once more, while that one is there. */
    worker_ok(client, worker_ops->share(client, &pool.memory, pool.device, MLA_ACCESS_READ, NULL, &pool.region));
    worker_ok(client, mla_region_unregister(client, pool.region, WORKER_TIMEOUT_US));
    worker_job_run(&job);
    worker_job_check(&job);
    worker_job_free(client, &job);
    worker_ok(client, mla_cache_drop(client, cache, WORKER_TIMEOUT_US));
    worker_ok(client, mla_region_unregister(client, again, WORKER_TIMEOUT_US));
    ck_assert_str_eq(gpu_daemon_memory(&d), "");
    ck_assert_double_eq(worker_metric(client, "mlad_mapped_bytes", ""), 0);
    mla_close(client);
    worker_ops->free(&pool.memory, pool.device);
    return 0;
}

START_TEST(d10_registered_twice)
{
    enum worker_form form = (enum worker_form)_i;
    struct peer peer;
    gpu_daemon_start(&d, "");
    peer_start(&peer, same_memory_twice, &form);
    peer_end(&peer);
    gpu_daemon_stop(&d, 0);
}
END_TEST

/* ---- the workspace ---- */

/* Page ids of so many tokens do not fit the workspace, and the GPU takes no more memory for them. */
static int too_many_tokens(struct peer *parent, void *arg)
{
    enum { SEQS_MAX = 320, TOKENS = 1 << 24 }; /* a MiB of page ids each */
    static uint32_t one[SEQS_MAX], most[SEQS_MAX];
    const uint32_t n_seqs = gpu_is_fake() ? 80 : SEQS_MAX;
    struct worker_pool pool;
    struct worker_job job;
    struct mla_tables tables;
    (void)parent;
    (void)arg;
    worker_cuda_start();
    struct mla_client *client = worker_open(d.socket, "large");
    worker_pool_new(client, &pool, n_seqs * (TOKENS / 64) * sizeof(int32_t) / WORKER_PAGE_BYTES + 1, 3);
    worker_job_new(client, &job, pool.cache, pool.memory.addr, 8,
                   &(struct worker_shape){.heads = 2, .q_len = {n_seqs}, .kv_len = {400}, .seed = 5});
    for (uint32_t i = 0; i < n_seqs; i++) {
        one[i] = 1;
        most[i] = TOKENS;
    }
    mla_tables_init(&tables);
    tables.id = 7;
    tables.n_seqs = n_seqs;
    tables.q_len = one;
    tables.kv_len_max = most;
    worker_ok(client, mla_tables_put(client, &tables, WORKER_TIMEOUT_US));
    struct mla_decode_args args = job.args;
    struct mla_decode_result result = {.size = sizeof(result)};
    args.tables = tables.id;
    args.table.region = pool.region;
    args.table_entries_per_seq = TOKENS / 64;
    worker_expect(client, mla_decode(client, &args, WORKER_TIMEOUT_US, &result), MLA_TOO_LARGE);
    ck_assert_msg(strstr(result.error.text, "workspace") != NULL, "%s", result.error.text);
    worker_job_run(&job);
    worker_job_check(&job);
    worker_job_free(client, &job);
    worker_pool_free(client, &pool);
    mla_close(client);
    return 0;
}

START_TEST(a_job_larger_than_the_workspace)
{
    struct peer peer;
    gpu_daemon_start(&d, "");
    peer_start(&peer, too_many_tokens, NULL);
    peer_end(&peer);
    gpu_daemon_stop(&d, 0);
}
END_TEST

/* ---- refusals ---- */

static const struct mla_error *region_with(const struct mla_message *m, int fd, enum mla_status code, const char *field)
{
    const struct mla_error *e = &raw_call_fds(&r, m, &fd, fd >= 0 ? 1 : 0)->reply.status;
    ck_assert_msg(e->code == code, "%s (field %s: %s), not %s", mla_status_name(e->code), e->field, e->text,
                  mla_status_name(code));
    ck_assert_str_eq(e->field, field);
    return e;
}

static void says(const struct mla_error *e, const char *words)
{
    ck_assert_msg(strstr(e->text, words) != NULL, "\"%s\" does not say \"%s\"", e->text, words);
}

START_TEST(d11_another_gpu)
{
    static const uint8_t handle[64] = {1};
    struct mla_message m;
    gpu_daemon_start(&d, "");
    greet();
    mla_message_init(&m, MLA_MSG_REGISTER_REGION);
    m.register_region.kind = MLA_REGION_CUDA_IPC;
    m.register_region.access = MLA_ACCESS_READ;
    m.register_region.size = 4096;
    m.register_region.block_size = 4096;
    m.register_region.cuda_ipc = handle;
    m.register_region.n_cuda_ipc = sizeof(handle);
    m.register_region.gpu_uuid = "GPU-01234567-89ab-cdef-0123-456789abcdef";
    says(region_with(&m, -1, MLA_WRONG_DEVICE, "gpu_uuid"), served);
    raw_close(&r);

    struct mla_options options;
    struct mla_client *client = NULL;
    struct mla_error_info info;
    mla_options_init(&options);
    options.socket_path = d.socket;
    options.gpu_uuid = m.register_region.gpu_uuid;
    ck_assert_int_eq(mla_open(&options, &client, &info), MLA_WRONG_DEVICE);
    ck_assert_msg(strstr(info.text, served) != NULL, "%s", info.text);
    options.gpu_uuid = served;
    ck_assert_int_eq(mla_open(&options, &client, &info), MLA_OK);
    mla_close(client);
    gpu_daemon_stop(&d, 0);
}
END_TEST

/* D12: what a program that knows only the legacy way can send for memory of cuMemCreate: the driver gives it no handle,
 * so bytes that are none. */
static int no_handle_for_vmm(struct peer *parent, void *arg)
{
    (void)parent;
    (void)arg;
    struct worker_cuda *cuda = worker_cuda_start();
    struct mla_memory memory;
    void *device;
    CUipcMemHandle handle;
    worker_cuda_form(WORKER_VMM);
    worker_ops->create(1 << 20, &memory, &device);
    ck_assert_int_ne(cuda->cu.cuIpcGetMemHandle(&handle, worker_cuda_address(device)), CUDA_SUCCESS);
    worker_ops->free(&memory, device);
    return 0;
}

START_TEST(d12_legacy_handle_of_vmm_memory)
{
    uint8_t handle[64];
    struct mla_message m;
    struct peer peer;
    gpu_daemon_start(&d, "");
    peer_start(&peer, no_handle_for_vmm, NULL);
    peer_end(&peer);
    greet();
    mla_message_init(&m, MLA_MSG_REGISTER_REGION);
    m.register_region.kind = MLA_REGION_CUDA_IPC;
    m.register_region.access = MLA_ACCESS_READ;
    m.register_region.size = m.register_region.block_size = 1 << 20;
    m.register_region.cuda_ipc = handle;
    m.register_region.n_cuda_ipc = sizeof(handle);
    m.register_region.gpu_uuid = served;
    for (unsigned fill = 0; fill < 256; fill += 0x5a) {
        memset(handle, (int)fill, sizeof(handle));
        says(region_with(&m, -1, MLA_BAD_HANDLE, "cuda_ipc"), "CUDA_VMM");
    }
    ck_assert_str_eq(gpu_daemon_memory(&d), "");
    raw_close(&r);
    gpu_daemon_stop(&d, 0);
}
END_TEST

static int memfd(uint64_t bytes, int seals)
{
    int fd = memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    ck_assert_int_eq(ftruncate(fd, (off_t)bytes), 0);
    if (seals != 0)
        ck_assert_int_eq(fcntl(fd, F_ADD_SEALS, seals), 0);
    return fd;
}

static void sync_with(int fd, uint64_t size, enum mla_status code, const char *field)
{
    struct mla_message m;
    mla_message_init(&m, MLA_MSG_REGISTER_SYNC);
    m.register_sync.size = size;
    region_with(&m, fd, code, field);
    close(fd);
}

static void part_with(int fd, uint64_t size, enum mla_status code, const char *field)
{
    struct mla_message m;
    const struct mla_region_part part = {.size = size};
    mla_message_init(&m, MLA_MSG_REGISTER_REGION);
    m.register_region.kind = MLA_REGION_CUDA_VMM;
    m.register_region.access = MLA_ACCESS_READ;
    m.register_region.size = size;
    m.register_region.parts = &part;
    m.register_region.gpu_uuid = served;
    m.register_region.n_parts = 1;
    region_with(&m, fd, code, field);
    close(fd);
}

/* D19: sync pages that could shrink under the GPU; files where descriptors of device memory belong; sizes that nothing
 * stands behind. Refused, and nothing stays. */
START_TEST(d19_kinds_of_files)
{
    struct mla_message m;
    gpu_daemon_start(&d, "");
    greet();
    unsigned fds = daemon_fds(&d);
    int pipes[2];
    ck_assert_int_eq(pipe2(pipes, O_CLOEXEC), 0);
    sync_with(memfd(4096, 0), 4096, MLA_NOT_SEALED, "fd");
    sync_with(memfd(4096, F_SEAL_GROW | F_SEAL_SEAL), 4096, MLA_NOT_SEALED, "fd");
    sync_with(dup(pipes[0]), 4096, MLA_BAD_DESCRIPTOR, "fd");
    sync_with(open("/dev/null", O_RDWR | O_CLOEXEC), 4096, MLA_BAD_DESCRIPTOR, "fd");
    sync_with(memfd(4096, F_SEAL_SHRINK), 8192, MLA_OUT_OF_BOUNDS, "size");

    part_with(dup(pipes[0]), 2u << 20, MLA_BAD_HANDLE, "parts.fd");
    part_with(memfd(2u << 20, F_SEAL_SHRINK), 2u << 20, MLA_BAD_HANDLE, "parts.fd");
    part_with(memfd(TIB, F_SEAL_SHRINK), TIB, MLA_BAD_HANDLE, "parts.fd");
    close(pipes[0]);
    close(pipes[1]);

    /* Memory that only a CPU backend can use. */
    int fd = memfd(4096, F_SEAL_SHRINK);
    mla_message_init(&m, MLA_MSG_REGISTER_REGION);
    m.register_region.kind = MLA_REGION_MEMFD;
    m.register_region.access = MLA_ACCESS_READ;
    m.register_region.size = 4096;
    const struct mla_error *e = &raw_call_fds(&r, &m, &fd, 1)->reply.status;
    ck_assert_int_eq(e->code, MLA_UNSUPPORTED);
    close(fd);

    ck_assert_str_eq(gpu_daemon_memory(&d), "");
    ck_assert_double_eq(raw_metric(&r, "mlad_mapped_bytes", ""), 0);
    ck_assert_uint_eq(daemon_fds(&d), fds);

    /* And what is sealed cannot shrink. */
    uint64_t *words;
    ck_assert_uint_ne(raw_sync(&r, &words), 0);
    munmap(words, 4096);
    raw_close(&r);
    gpu_daemon_stop(&d, 0);
}
END_TEST

MLA_SUITE(gpu_memory)
{
    TCase *tc = mla_tcase_timeout(suite, "memory", 60);
    tcase_add_loop_test(tc, d10_registered_twice, 0, WORKER_FORMS);
    tcase_add_test(tc, a_job_larger_than_the_workspace);
    tcase_add_test(tc, d11_another_gpu);
    tcase_add_test(tc, d12_legacy_handle_of_vmm_memory);
    tcase_add_test(tc, d19_kinds_of_files);
}
