/* Memory: what may be registered, what is refused and leaves nothing mapped, and whose it is. */
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include "tests/support/check_main.h"
#include "tests/support/daemon_fixture.h"
#include "tests/support/raw_client.h"
#include "tests/support/worker.h"

static struct daemon d;
static struct raw r;

static unsigned maps(void)
{
    unsigned n;
    daemon_mapped_bytes(&d, "memfd:", &n);
    return n;
}

static struct mla_message region_request(uint64_t offset, uint64_t size, enum mla_access access)
{
    struct mla_message m;
    mla_message_init(&m, MLA_MSG_REGISTER_REGION);
    m.register_region.kind = MLA_REGION_MEMFD;
    m.register_region.access = access;
    m.register_region.offset = offset;
    m.register_region.size = size;
    return m;
}

/* Registers fd; must be answered with this, and change nothing of the daemon when refused. */
static const struct mla_error *region_with(int fd, uint64_t offset, uint64_t size, enum mla_access access,
                                           enum mla_status code, const char *field)
{
    unsigned maps_before = maps(), fds_before = daemon_fds(&d);
    struct mla_message m = region_request(offset, size, access);
    const struct mla_error *e = &raw_call_fds(&r, &m, &fd, 1)->reply.status;
    ck_assert_msg(e->code == code, "offset %llu, size %llu: %s (%s), not %s", (unsigned long long)offset,
                  (unsigned long long)size, mla_status_name(e->code), e->text, mla_status_name(code));
    if (code == MLA_OK)
        return e;
    ck_assert_str_eq(e->field == NULL ? "" : e->field, field);
    ck_assert_uint_eq(maps(), maps_before);
    ck_assert_uint_eq(daemon_fds(&d), fds_before);
    return e;
}

/* ---- D9 ---- */

START_TEST(d9_regions)
{
    daemon_start(&d, NULL);
    raw_open(&r, d.socket);
    int fd = raw_memfd(8 * 4096, NULL);
    const enum mla_access rd = MLA_ACCESS_READ;
    const struct mla_error *e;
    e = region_with(fd, 0, 8 * 4096 + 1, rd, MLA_OUT_OF_BOUNDS, "size");
    ck_assert_uint_eq(e->value, 8 * 4096 + 1);
    ck_assert_uint_eq(e->limit, 8 * 4096);
    e = region_with(fd, 4096, 8 * 4096, rd, MLA_OUT_OF_BOUNDS, "size");
    ck_assert_uint_eq(e->limit, 7 * 4096);
    region_with(fd, 9 * 4096, 4096, rd, MLA_OUT_OF_BOUNDS, "size");
    region_with(fd, UINT64_MAX - 4095, 8192, rd, MLA_OUT_OF_BOUNDS, "size"); /* the sum passes 2^64 */
    region_with(fd, UINT64_MAX - 4095, 16, rd, MLA_OUT_OF_BOUNDS, "size");
    region_with(fd, UINT64_C(1) << 63, 4096, rd, MLA_OUT_OF_BOUNDS, "size"); /* an offset that off_t has not */
    region_with(fd, 4096, UINT64_MAX - 4096, rd, MLA_QUOTA, "size");
    e = region_with(fd, 16, 4096, rd, MLA_MISALIGNED, "offset");
    ck_assert_uint_eq(e->value, 16);
    ck_assert_uint_eq(e->limit, 4096);
    e = region_with(fd, 8, 4096, rd, MLA_MISALIGNED, "offset");
    ck_assert_uint_eq(e->limit, 16);
    region_with(fd, 0, 0, rd, MLA_INVALID_ARGUMENT, "size");
    region_with(fd, 0, 4096, (enum mla_access)0, MLA_INVALID_ARGUMENT, "access");
    region_with(fd, 0, 4096, (enum mla_access)3, MLA_INVALID_ARGUMENT, "access");
    ck_assert_double_eq(raw_metric(&r, "mlad_regions", ""), 0);
    ck_assert_double_eq(raw_metric(&r, "mlad_mapped_bytes", ""), 0);
    region_with(fd, 4096, 7 * 4096, rd, MLA_OK, NULL);
    region_with(fd, 0, 1, rd, MLA_OK, NULL); /* sizes need not be whole pages */
    ck_assert_double_eq(raw_metric(&r, "mlad_mapped_bytes", ""), 7 * 4096 + 1);
    raw_close(&r);
    daemon_stop(&d, SIGTERM, 0);
}
END_TEST

START_TEST(d9_descriptors)
{
    daemon_start(&d, NULL);
    raw_open(&r, d.socket);
    struct mla_message m = region_request(0, 4096, MLA_ACCESS_READ);
    int fd = raw_memfd(4096, NULL), two[2] = {fd, fd};
    unsigned fds = daemon_fds(&d);
    raw_expect(&r, &m, MLA_NO_DESCRIPTORS, NULL);
    const struct mla_error *e = &raw_call_fds(&r, &m, two, 2)->reply.status;
    ck_assert_int_eq(e->code, MLA_NO_DESCRIPTORS);
    ck_assert_uint_eq(e->value, 2);
    ck_assert_uint_eq(e->limit, 1);
    struct mla_message health;
    mla_message_init(&health, MLA_MSG_HEALTH);
    ck_assert_int_eq(raw_call_fds(&r, &health, two, 2)->reply.status.code, MLA_NO_DESCRIPTORS);
    mla_message_init(&m, MLA_MSG_REGISTER_SYNC);
    m.register_sync.size = 4096;
    raw_expect(&r, &m, MLA_NO_DESCRIPTORS, NULL);
    m.register_sync.size = 100;
    ck_assert_int_eq(raw_call_fds(&r, &m, &fd, 1)->reply.status.code, MLA_MISALIGNED);
    m.register_sync.size = (1u << 20) + 4096;
    e = &raw_call_fds(&r, &m, &fd, 1)->reply.status;
    ck_assert_int_eq(e->code, MLA_TOO_LARGE);
    ck_assert_uint_eq(e->limit, 1u << 20);
    m.register_sync.size = 8192; /* longer than the file */
    ck_assert_int_eq(raw_call_fds(&r, &m, &fd, 1)->reply.status.code, MLA_OUT_OF_BOUNDS);
    ck_assert_uint_eq(daemon_fds(&d), fds);
    ck_assert_uint_eq(maps(), 0);
    raw_close(&r);
    daemon_stop(&d, SIGTERM, 0);
}
END_TEST

/* ---- D9 for caches ---- */

static void cache_request(struct mla_message *m, uint64_t region, uint64_t num_pages)
{
    mla_message_init(m, MLA_MSG_DEFINE_CACHE);
    m->define_cache.layout = MLA_CACHE_E4M3_576;
    m->define_cache.region = region;
    m->define_cache.num_pages = num_pages;
}

START_TEST(d9_caches)
{
    daemon_start(&d, NULL);
    raw_open(&r, d.socket);
    const uint64_t page = 64 * 576, bytes = 10 * page;
    int fd = raw_memfd(bytes, NULL);
    uint64_t region = raw_region(&r, fd, bytes, MLA_ACCESS_READ);
    unsigned before = maps();
    struct mla_message m;
#define WITH(pages, assign)     (cache_request(&m, region, pages), m.define_cache.assign, &m)
#define WITH2(pages, assign, b) (cache_request(&m, region, pages), m.define_cache.assign, m.define_cache.b, &m)
#define PLANES(pages)                                                                                                  \
    (cache_request(&m, region, pages), m.define_cache.plane_offset = planes, m.define_cache.n_plane_offset = 2, &m)
    const struct mla_error *e;
    e = raw_expect(&r, WITH(11, offset = 0), MLA_OUT_OF_BOUNDS, "num_pages");
    ck_assert_uint_eq(e->value, 11);
    ck_assert_uint_eq(e->limit, bytes);
    raw_expect(&r, WITH(10, offset = 16), MLA_OUT_OF_BOUNDS, "num_pages");
    raw_expect(&r, WITH(0, offset = 0), MLA_INVALID_ARGUMENT, "num_pages");
    raw_expect(&r, WITH(UINT64_C(1) << 32, offset = 0), MLA_INVALID_ARGUMENT, "num_pages");
    raw_expect(&r, WITH(UINT64_MAX, offset = 0), MLA_INVALID_ARGUMENT, "num_pages");
    raw_expect(&r, WITH(10, offset = UINT64_MAX - 15), MLA_OUT_OF_BOUNDS, "num_pages");
    raw_expect(&r, WITH(10, offset = 8), MLA_MISALIGNED, "offset");
    raw_expect(&r, WITH(2, page_stride = UINT64_MAX - 15), MLA_OUT_OF_BOUNDS, "num_pages");
    raw_expect(&r, WITH(UINT32_MAX, page_stride = UINT64_C(1) << 62), MLA_OUT_OF_BOUNDS, "num_pages");
    raw_expect(&r, WITH(2, page_stride = page + 8), MLA_MISALIGNED, "page_stride");
    raw_expect(&r, WITH(2, page_stride = page - 16), MLA_INVALID_ARGUMENT, "page_stride"); /* pages overlap */
    raw_expect(&r, WITH(1, row_stride = 560), MLA_INVALID_ARGUMENT, "row_stride");
    raw_expect(&r, WITH(1, row_stride = 584), MLA_MISALIGNED, "row_stride");
    raw_expect(&r, WITH2(1, row_stride = UINT64_C(1) << 40, page_stride = UINT64_C(1) << 50), MLA_INVALID_ARGUMENT,
               "row_stride");
    raw_expect(&r, WITH(1, tokens_per_page = 128), MLA_INVALID_ARGUMENT, "tokens_per_page");
    raw_expect(&r, WITH(2, tokens_per_entry = 96), MLA_MISALIGNED, "tokens_per_entry");
    raw_expect(&r, WITH(2, tokens_per_entry = 8192), MLA_TOO_LARGE, "tokens_per_entry");
    raw_expect(&r, WITH(3, tokens_per_entry = 128), MLA_INVALID_ARGUMENT, "num_pages"); /* half an entry */
    raw_expect(&r, WITH(1, layout = MLA_CACHE_BF16_576), MLA_UNSUPPORTED, "layout");
    raw_expect(&r, WITH(1, layout = (enum mla_cache_layout)9), MLA_INVALID_ARGUMENT, "layout");
    raw_expect(&r, WITH(1, region = region + 1), MLA_NOT_FOUND, "region");
    uint64_t planes[2] = {0, 5 * page + 16};
    raw_expect(&r, PLANES(5), MLA_OUT_OF_BOUNDS, "plane_offset");
    ck_assert_uint_eq(r.message.reply.status.index, 1);
    planes[1] = UINT64_MAX - 15;
    raw_expect(&r, (PLANES(5)->define_cache.offset = 32, &m), MLA_OUT_OF_BOUNDS, "plane_offset");
    planes[1] = 8;
    raw_expect(&r, PLANES(5), MLA_MISALIGNED, "plane_offset");
    ck_assert_double_eq(raw_metric(&r, "mlad_caches", ""), 0);
    planes[1] = 5 * page;
    raw_expect(&r, PLANES(5), MLA_OK, NULL);
    raw_expect(&r, WITH(10, offset = 0), MLA_OK, NULL);
    /* The last page's gap and the last row's pad need not be there. */
    raw_expect(&r, WITH2(9, page_stride = page + 4096, offset = 32), MLA_OK, NULL);
    ck_assert_uint_eq(maps(), before);
    raw_close(&r);
    daemon_stop(&d, SIGTERM, 0);
}
END_TEST

/* ---- D10 ---- */

START_TEST(d10_the_same_descriptor_twice)
{
    daemon_start(&d, NULL);
    struct mla_client *client = worker_open(d.socket, "worker");
    struct worker_pool pool;
    struct worker_job job;
    mla_region_id again;
    worker_pool_new(client, &pool, 8, 3);
    worker_ok(client, mla_memory_register(client, &pool.memory, MLA_ACCESS_READ, "again", WORKER_TIMEOUT_US, &again));
    ck_assert_uint_ne(again, pool.region);
    ck_assert_uint_eq(maps(), 2);
    worker_ok(client, mla_region_unregister(client, again, WORKER_TIMEOUT_US));
    ck_assert_uint_eq(maps(), 1);
    worker_job_new(client, &job, pool.cache, pool.memory.addr, 8,
                   &(struct worker_shape){.heads = 16, .q_len = {2}, .kv_len = {200}});
    worker_job_run(&job);
    worker_job_check(&job);
    worker_expect(client, mla_region_unregister(client, again, WORKER_TIMEOUT_US), MLA_NOT_FOUND);
    worker_job_free(client, &job);
    worker_pool_free(client, &pool);
    ck_assert_uint_eq(maps(), 0);
    mla_close(client);
    daemon_stop(&d, SIGTERM, 0);
}
END_TEST

/* ---- D19 ---- */

static int memfd(uint64_t bytes, int seals)
{
    int fd = memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    ck_assert_int_eq(ftruncate(fd, (off_t)bytes), 0);
    if (seals != 0)
        ck_assert_int_eq(fcntl(fd, F_ADD_SEALS, seals), 0);
    return fd;
}

START_TEST(d19_kinds_of_files)
{
    daemon_start(&d, "limits.max_mapped_bytes=2T", NULL);
    raw_open(&r, d.socket);
    const enum mla_access rd = MLA_ACCESS_READ, rw = MLA_ACCESS_READ_WRITE;
    int pipes[2];
    ck_assert_int_eq(pipe(pipes), 0);
    char path[] = "/tmp/mlad-file-XXXXXX";
    int file = mkstemp(path);
    ck_assert_int_eq(ftruncate(file, 4096), 0);
    unlink(path);
    region_with(memfd(4096, 0), 0, 4096, rd, MLA_NOT_SEALED, "fd");
    region_with(memfd(4096, F_SEAL_GROW | F_SEAL_SEAL), 0, 4096, rd, MLA_NOT_SEALED, "fd");
    region_with(pipes[0], 0, 4096, rd, MLA_BAD_DESCRIPTOR, "fd");
    region_with(r.fd, 0, 4096, rd, MLA_BAD_DESCRIPTOR, "fd");
    region_with(open("/dev/null", O_RDWR), 0, 4096, rd, MLA_BAD_DESCRIPTOR, "fd");
    region_with(open("/proc/self/mem", O_RDONLY), 0, 4096, rd, MLA_BAD_DESCRIPTOR, "fd");
    region_with(memfd(0, F_SEAL_SHRINK), 0, 4096, rd, MLA_OUT_OF_BOUNDS, "size");
    region_with(memfd(4096, F_SEAL_SHRINK | F_SEAL_WRITE), 0, 4096, rw, MLA_ACCESS_DENIED, "access");
    region_with(memfd(4096, F_SEAL_SHRINK | F_SEAL_WRITE), 0, 4096, rd, MLA_OK, NULL);
    int fd = raw_memfd(4096, NULL);
    char link[64];
    snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
    region_with(open(link, O_RDONLY), 0, 4096, rw, MLA_ACCESS_DENIED, "access");
    region_with(open(link, O_RDONLY), 0, 4096, rd, MLA_OK, NULL);

    /* 1 TiB, of which nothing is there: harmless, and counted in full. */
    const uint64_t tib = UINT64_C(1) << 40;
    int huge = memfd(tib, F_SEAL_SHRINK);
    uint64_t rss = daemon_rss_bytes(&d);
    region_with(huge, 0, tib, rd, MLA_OK, NULL);
    ck_assert_uint_lt(daemon_rss_bytes(&d), rss + (64u << 20));
    ck_assert_double_eq(raw_metric(&r, "mlad_mapped_bytes", ""), (double)tib + 2 * 4096);
    const struct mla_error *err = region_with(huge, 0, tib, rd, MLA_QUOTA, "size");
    ck_assert_uint_eq(err->value, tib);
    ck_assert_uint_eq(err->limit, tib - 2 * 4096);
    region_with(huge, 0, tib - 2 * 4096, rd, MLA_OK, NULL); /* just what is left */
    region_with(fd, 0, 1, rd, MLA_QUOTA, "size");
    raw_close(&r);
    daemon_stop(&d, SIGTERM, 0);
}
END_TEST

/* A worker that tries to pull the memory away: it cannot, and the daemon reads on. */
START_TEST(d19_shrinking)
{
    daemon_start(&d, NULL);
    struct mla_client *client = worker_open(d.socket, "worker");
    struct worker_pool pool;
    struct worker_job job;
    worker_pool_new(client, &pool, 8, 3);
    ck_assert_int_eq(ftruncate(pool.memory.fd, 4096), -1);
    ck_assert_int_eq(ftruncate(pool.memory.fd, 0), -1);
    ck_assert_int_eq(fallocate(pool.memory.fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, WORKER_PAGE_BYTES), 0);
    worker_job_new(client, &job, pool.cache, pool.memory.addr, 8,
                   &(struct worker_shape){.heads = 16, .q_len = {2}, .kv_len = {200}});
    worker_job_run(&job); /* the hole reads as zeros on both sides */
    worker_job_check(&job);
    worker_job_free(client, &job);
    worker_pool_free(client, &pool);
    mla_close(client);
    daemon_stop(&d, SIGTERM, 0);
}
END_TEST

MLA_SUITE(mlad_memory)
{
    TCase *tc = mla_tcase(suite, "memory");
    tcase_add_test(tc, d9_regions);
    tcase_add_test(tc, d9_descriptors);
    tcase_add_test(tc, d9_caches);
    tcase_add_test(tc, d10_the_same_descriptor_twice);
    tcase_add_test(tc, d19_kinds_of_files);
    tcase_add_test(tc, d19_shrinking);
}
