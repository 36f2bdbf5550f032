/* Faults of the driver, on the fake one: every call that the backend makes fails once, loses the device once, in a
 * session that uses all of it. Each time the answer is typed, nothing hangs and nothing is left behind. */
#include <dirent.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "daemon/backend/cuda/cuda.h"
#include "daemon/backend/cuda/gpu.h"
#include "daemon/util/clock.h"
#include "tests/support/check_main.h"
#include "tests/support/decode_case.h"
#include "tests/unit/test_be_cuda.h"

#define MIB        ((size_t)1 << 20)
#define SECONDS    30 /* of one session */
#define ABORT_STEP (UINT64_C(1) << 62)

#if defined(__SANITIZE_THREAD__)
/* A context that cannot be given back keeps the fake driver's threads. */
__attribute__((visibility("default"))) const char *__tsan_default_options(void);
const char *__tsan_default_options(void)
{
    return "report_thread_leaks=0";
}
#endif

static const char *const names[MLA_FAKE_kernel] = {
#define NAME(name) [MLA_FAKE_##name] = #name,
    CUDA_DRIVER_LIST(NAME)
#undef NAME
};

/* What gives something back: when it fails, that one thing stays. */
static const enum mla_fake_call releases[] = {MLA_FAKE_cuDevicePrimaryCtxRelease,
                                              MLA_FAKE_cuModuleUnload,
                                              MLA_FAKE_cuMemFree,
                                              MLA_FAKE_cuMemFreeHost,
                                              MLA_FAKE_cuMemHostUnregister,
                                              MLA_FAKE_cuIpcCloseMemHandle,
                                              MLA_FAKE_cuMemRelease,
                                              MLA_FAKE_cuMemAddressFree,
                                              MLA_FAKE_cuMemUnmap,
                                              MLA_FAKE_cuStreamDestroy,
                                              MLA_FAKE_cuEventDestroy,
                                              MLA_FAKE_cuGraphDestroy,
                                              MLA_FAKE_cuGraphExecDestroy};

static unsigned launches = 1; /* of a session, all with the same records */

struct session {
    struct rig rig;
    struct exported ipc, vmm;
    struct be_region regions[4]; /* sync page, two of one allocation, three allocations */
    bool mapped[4];
};

static uint64_t calls_made(void)
{
    struct mla_fake_report report;
    uint64_t sum = 0;
    ck_assert(cuda_fake_report(&report));
    for (int i = 0; i < MLA_FAKE_kernel; i++)
        if (i != MLA_FAKE_cuGetErrorName && i != MLA_FAKE_cuGetErrorString)
            sum += report.calls[i];
    return sum;
}

static bool lost(const struct session *s)
{
    return s->rig.lost.code != MLA_OK;
}

static void take(struct exported *out, enum mla_region_kind kind, size_t bytes, size_t n_parts)
{
    int copy = rig_memfd(bytes, false);
    exporter_take(kind, bytes, n_parts, copy, out);
    close(copy);
}

static void map_all(struct session *s)
{
    s->regions[0] = cuda_sync_region();
    s->regions[1] = cuda_region(&s->ipc, MIB, MLA_ACCESS_READ);
    s->regions[2] = cuda_region(&s->ipc, MIB, MLA_ACCESS_READ_WRITE);
    s->regions[3] = cuda_region(&s->vmm, 8 * MIB, MLA_ACCESS_READ_WRITE);
    for (int i = 0; i < 4 && !lost(s); i++) {
        struct mla_error err = cuda_ask(&s->rig, BE_MAP, &s->regions[i]);
        s->mapped[i] = !lost(s) && err.code == MLA_OK;
        if (lost(s) || s->mapped[i])
            continue;
        ck_assert_uint_ne(err.text[0], 0);
        ck_assert_uint_eq(s->regions[i].address, 0);
        ck_assert_ptr_null(s->regions[i].impl);
    }
    close(s->regions[0].fd);
}

/* Its memory is the backend's own, so that no mapping of it can fail. */
static void launch(struct session *s)
{
    struct be_done_word done = {s->regions[0].host, 1};
    s->rig.shared = &mem_host;
    struct dc *c = dc_new(&s->rig);
    struct dc_job *j = dc_add(
        c,
        &(struct dc_shape){.heads = 16, .n_seqs = 2, .seqs = SEQS({1, 200}, {2, 150}), .user_status = true, .seed = 1});
    c->request.splits = 2;
    c->done = &done;
    c->n_done = s->mapped[0] ? 1 : 0;
    dc_plan(c);
    for (unsigned i = 0; i < launches && !lost(s); i++) {
        dc_launch(c);
        rig_wait(&s->rig, &c->ticket);
    }
    if (!lost(s)) {
        dc_check(j);
        if (s->mapped[0])
            ck_assert_uint_eq(*done.word, 1);
    }
    dc_free(c);
}

static void abort_one(struct session *s)
{
    struct ticket t = {.request = {.op = BE_ABORT,
                                   .abort = {.word = s->mapped[0] ? s->regions[0].host : NULL,
                                             .value = 2 + ABORT_STEP,
                                             .user_status = s->regions[3].address,
                                             .n_seqs = 700,
                                             .code = MLA_TIMED_OUT}}};
    if (!s->mapped[3])
        return;
    rig_submit(&s->rig, &t);
    rig_wait(&s->rig, &t);
    if (!lost(s) && s->mapped[0])
        ck_assert_uint_eq(*(uint64_t *)s->regions[0].host, 2 + ABORT_STEP);
}

/* A copy that is refused has not been made, and nothing else is the worse for it. */
static void mirror(struct session *s)
{
    uint64_t address, to = be_device_alloc(&s->rig.be, 4096);
    void *from = be_host_alloc(&s->rig.be, 4096, &address);
    ck_assert(from != NULL && to != 0);
    memset(from, 0x5a, 4096);
    memset((void *)(uintptr_t)to, 0, 4096); /* the fake driver's are addresses of this process */
    struct ticket t = {.request = {.op = BE_MIRROR, .mirror = {.from = from, .to = to, .bytes = 4096}}};
    rig_submit(&s->rig, &t);
    rig_wait(&s->rig, &t);
    if (lost(s))
        return;
    ck_assert_int_eq(memcmp(from, (void *)(uintptr_t)to, 4096) == 0, t.error.code == MLA_OK);
    be_host_free(&s->rig.be, from);
    be_device_free(&s->rig.be, to, 4096);
}

static void unmap_all(struct session *s)
{
    for (int i = 0; i < 4 && !lost(s); i++) {
        if (!s->mapped[i])
            continue;
        struct mla_error err = cuda_ask(&s->rig, BE_UNMAP, &s->regions[i]);
        if (lost(s))
            return;
        ck_assert(err.code == MLA_OK || err.code == MLA_INTERNAL);
        ck_assert_ptr_null(s->regions[i].impl);
    }
}

/* Until the device's own look finds what nobody asked for. */
static void idle(struct session *s)
{
    uint64_t until = mla_now_ns() + 700 * MLA_NS_PER_MS;
    while (!lost(s) && mla_now_ns() < until)
        rig_poll(&s->rig, 100);
}

static bool waits(const char *rule)
{
    return *rule == '\0' || strncmp(rule, "cu", 2) != 0 || strncmp(rule, "cuStreamQuery", 13) == 0;
}

static void session(const char *rule, bool leaves_nothing, struct mla_fake_report *report)
{
    struct session s = {.rig = {.may_be_lost = true, .accuracy = REF_ACCURACY_E4M3_P}};
    struct be_config config = {.workspace_bytes = 4 * MIB, .host_bytes = 4 * MIB};
    struct mla_error err = {.code = MLA_OK};
    char open_now[300];
    exporter_start();
    take(&s.ipc, MLA_REGION_CUDA_IPC, MIB, 0);
    take(&s.vmm, MLA_REGION_CUDA_VMM, 8 * MIB, 3);
    ck_assert(cuda_fake_rules(rule));
    int rc = be_open(&s.rig.be, &be_cuda_ops, &config, &err);
    if (rc == 0) {
        s.rig.facts = be_facts(&s.rig.be);
        map_all(&s);
        if (!lost(&s))
            launch(&s);
        if (!lost(&s))
            abort_one(&s);
        if (!lost(&s))
            mirror(&s);
        unmap_all(&s);
        if (!lost(&s) && waits(rule))
            idle(&s);
        uint64_t calls = calls_made();
        uint64_t from = mla_now_ns();
        be_close(&s.rig.be);
        ck_assert_uint_lt(mla_now_ns() - from, 5 * MLA_NS_PER_S);
        if (lost(&s))
            ck_assert_msg(calls_made() == calls, "the driver is called after the device was lost");
    } else {
        ck_assert_int_eq(rc, (int)err.code);
        ck_assert_uint_ne(err.text[0], 0);
    }
    cuda_fake_report(report);
    mla_fake_report_open(report, open_now, sizeof open_now);
    /* A context that is gone has taken everything with it. */
    if (leaves_nothing && report->lost == 0 && !lost(&s))
        ck_assert_msg(open_now[0] == '\0', "left open: %s", open_now);
    report->lost = lost(&s) ? 1 : 0;
}

/* In a process of its own; false with a line that says what went wrong. */
static bool run_apart(const char *rule, bool leaves_nothing, struct mla_fake_report *report)
{
    fflush(NULL);
    pid_t pid = fork();
    ck_assert_int_ge(pid, 0);
    if (pid == 0) {
        alarm(SECONDS);
        session(rule, leaves_nothing, report);
        _exit(0);
    }
    int status = 0;
    ck_assert_int_eq(waitpid(pid, &status, 0), pid);
    if (WIFEXITED(status) && WEXITSTATUS(status) == 0)
        return true;
    fprintf(stderr, "rule %s: %s %d\n", rule, WIFSIGNALED(status) ? "signal" : "exit",
            WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status));
    return false;
}

static struct mla_fake_report *shared_report(void)
{
    void *page = mmap(NULL, sizeof(struct mla_fake_report), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    ck_assert_ptr_ne(page, MAP_FAILED);
    return page;
}

static bool is_release(int call)
{
    for (size_t i = 0; i < sizeof releases / sizeof releases[0]; i++)
        if ((int)releases[i] == call)
            return true;
    return false;
}

/* Of a call that is made often, the first times and the last. */
static bool chosen(uint64_t nth, uint64_t of)
{
    return nth <= 3 || nth == of;
}

static void sweep(const char *action)
{
    struct mla_fake_report *report = shared_report();
    struct mla_fake_report plain;
    ck_assert(run_apart("", true, report));
    ck_assert_uint_eq(report->lost, 0);
    plain = *report;
    int failures = 0, sessions = 0;
    for (int call = 0; call < MLA_FAKE_kernel; call++) {
        if (call == MLA_FAKE_cuGetErrorName || call == MLA_FAKE_cuGetErrorString)
            continue;
        for (uint64_t nth = 1; nth <= plain.calls[call]; nth++) {
            char rule[128];
            if (!chosen(nth, plain.calls[call]))
                continue;
            snprintf(rule, sizeof rule, "%s@%llu=%s", names[call], (unsigned long long)nth, action);
            failures += !run_apart(rule, !is_release(call), report);
            sessions++;
        }
    }
    ck_assert_int_gt(sessions, 50);
    ck_assert_msg(failures == 0, "%d of %d sessions", failures, sessions);
}

START_TEST(every_call_fails_once)
{
    sweep("fail CUDA_ERROR_INVALID_VALUE");
}
END_TEST

START_TEST(every_call_is_out_of_memory_once)
{
    sweep("fail CUDA_ERROR_OUT_OF_MEMORY");
}
END_TEST

START_TEST(every_call_loses_the_device_once)
{
    sweep("lose CUDA_ERROR_ILLEGAL_ADDRESS");
}
END_TEST

/* Launches that become graphs, with records that are copied, of which the fourth is captured, or fetched: the
 * seventeenth, which is timed as well. What is called while the stream is captured fails there, too; they then go on
 * without graphs. */
START_TEST(every_call_of_graphs)
{
    static const enum mla_fake_call all[] = {MLA_FAKE_cuStreamBeginCapture, MLA_FAKE_cuStreamEndCapture,
                                             MLA_FAKE_cuGraphInstantiate,   MLA_FAKE_cuGraphDestroy,
                                             MLA_FAKE_cuGraphLaunch,        MLA_FAKE_cuGraphExecDestroy,
                                             MLA_FAKE_cuLaunchKernelEx,     MLA_FAKE_cuMemcpyHtoDAsync};
    const bool copied = _i >= 2;
    const unsigned alike = copied ? 3 : 16;
    const size_t n = sizeof all / sizeof all[0] - !copied;
    struct mla_fake_report *report = shared_report();
    struct mla_fake_report before;
    int failures = 0;
    ck_assert_int_eq(setenv("MLA_CUDA_GRAPHS", copied ? "3" : "16", 1), 0);
    ck_assert_int_eq(setenv("MLA_CUDA_BLOB", copied ? "copied" : "", 1), 0);
    launches = alike;
    ck_assert(run_apart("", true, report));
    before = *report;
    launches = alike + 2;
    ck_assert(run_apart("", true, report));
    for (size_t i = 0; i < n; i++)
        ck_assert_uint_ge(report->calls[all[i]], before.calls[all[i]] + 1);
    for (size_t i = 0; i < n; i++) {
        /* Three copies are behind the launches: two of status words, and one for MIRROR. */
        uint64_t nth = before.calls[all[i]] + 1 - (all[i] == MLA_FAKE_cuMemcpyHtoDAsync ? 3 : 0);
        char rule[128];
        snprintf(rule, sizeof rule, "%s@%llu=%s", names[all[i]], (unsigned long long)nth,
                 _i % 2 == 0 ? "fail CUDA_ERROR_INVALID_VALUE" : "lose CUDA_ERROR_ILLEGAL_ADDRESS");
        failures += !run_apart(rule, !is_release((int)all[i]), report);
        if (_i % 2 == 0 && all[i] != MLA_FAKE_cuStreamEndCapture) /* then it is captured for ever */
            ck_assert_msg(report->lost == 0, "%s", rule);
        if (_i % 2 != 0 && all[i] != MLA_FAKE_cuGraphLaunch && all[i] != MLA_FAKE_cuGraphExecDestroy)
            ck_assert_msg(report->calls[MLA_FAKE_cuEventRecord] == before.calls[MLA_FAKE_cuEventRecord],
                          "%s: the driver is called after that", rule);
    }
    ck_assert_int_eq(failures, 0);
}
END_TEST

struct loss {
    const char *rule;
    bool lost;
};

static void lose(const struct loss *losses, size_t n)
{
    struct mla_fake_report *report = shared_report();
    for (size_t i = 0; i < n; i++) {
        ck_assert(run_apart(losses[i].rule, true, report));
        ck_assert_msg((report->lost != 0) == losses[i].lost, "%s", losses[i].rule);
    }
}

/* Records that are copied in front of the kernels instead of going with the first one. */
START_TEST(every_call_of_copies)
{
    static const struct loss losses[] = {{"cuMemcpyHtoDAsync@1=fail CUDA_ERROR_INVALID_VALUE", true},
                                         {"cuMemcpyHtoDAsync@3=lose CUDA_ERROR_ILLEGAL_ADDRESS", true},
                                         {"cuMemcpyHtoDAsync@4=fail CUDA_ERROR_INVALID_VALUE", false},
                                         {"cuMemcpyHtoDAsync@4=lose CUDA_ERROR_ILLEGAL_ADDRESS", true},
                                         {"copy@4=lose CUDA_ERROR_ECC_UNCORRECTABLE", true},
                                         {"cuLaunchKernelEx@1=lose CUDA_ERROR_ILLEGAL_ADDRESS", true},
                                         {"copy@1=lose CUDA_ERROR_ECC_UNCORRECTABLE", true}};
    ck_assert_int_eq(setenv("MLA_CUDA_BLOB", "copied", 1), 0);
    lose(losses, sizeof losses / sizeof losses[0]);
}
END_TEST

/* What the stream executes is never answered by a call; the GPU thread finds out by itself. */
START_TEST(everything_executed_loses_the_device_once)
{
    /* Of one session: prepare, decode and reducer; two pieces of status words and a MIRROR; done word and two
     * completions; start and end of the launch, which is the first and so timed. */
    static const struct {
        const char *name;
        int times;
    } executed[] = {{"kernel", 3}, {"copy", 3}, {"write", 3}, {"event", 2}};
    struct mla_fake_report *report = shared_report();
    for (size_t i = 0; i < sizeof executed / sizeof executed[0]; i++)
        for (int nth = 1; nth <= executed[i].times + 1; nth++) {
            char rule[128];
            snprintf(rule, sizeof rule, "%s@%d=lose CUDA_ERROR_ECC_UNCORRECTABLE", executed[i].name, nth);
            ck_assert(run_apart(rule, true, report));
            ck_assert_msg((report->lost != 0) == (nth <= executed[i].times), "%s: lost is %llu", rule,
                          (unsigned long long)report->lost);
        }
}
END_TEST

/* ---- calls that do not return ---- */

static char release_path[] = "/tmp/mla-test-release-XXXXXX";

static void hold(const char *call)
{
    char rule[128];
    int fd = mkstemp(release_path);
    ck_assert_int_ge(fd, 0);
    close(fd);
    unlink(release_path);
    snprintf(rule, sizeof rule, "%s=hold %s", call, release_path);
    ck_assert(cuda_fake_rules(rule));
}

static void let_go(void)
{
    FILE *f = fopen(release_path, "we");
    ck_assert_ptr_nonnull(f);
    fclose(f);
}

static bool gpu_thread_lives(void)
{
    DIR *tasks = opendir("/proc/self/task");
    bool found = false;
    ck_assert_ptr_nonnull(tasks);
    for (struct dirent *entry; (entry = readdir(tasks)) != NULL;) {
        char path[300], name[32] = "";
        snprintf(path, sizeof path, "/proc/self/task/%s/comm", entry->d_name);
        FILE *f = fopen(path, "re");
        if (!f)
            continue;
        found = (fgets(name, sizeof name, f) && strcmp(name, "mlad-gpu\n") == 0) || found;
        fclose(f);
    }
    closedir(tasks);
    return found;
}

/* Until the GPU thread has given everything back and has gone. */
static void assert_all_is_freed(void)
{
    struct mla_fake_report report;
    char open_now[300] = "";
    for (int i = 0; i < 500; i++) {
        ck_assert(cuda_fake_report(&report));
        mla_fake_report_open(&report, open_now, sizeof open_now);
        if (open_now[0] == '\0' && !gpu_thread_lives()) {
            unlink(release_path);
            return;
        }
        usleep(10000);
    }
    ck_abort_msg("left open: %s", open_now);
}

START_TEST(a_blocked_call_does_not_block_the_loop)
{
    struct rig rig = cuda_rig();
    struct be_region region = cuda_sync_region();
    struct ticket map = {.request = {.op = BE_MAP, .region = &region}};
    hold("cuMemHostRegister");
    rig_submit(&rig, &map);
    usleep(50000);
    uint64_t from = mla_now_ns();
    struct ticket more[100];
    uint64_t word = 0;
    for (int i = 0; i < 100; i++) {
        uint64_t address;
        void *memory = be_host_alloc(&rig.be, 4096, &address);
        ck_assert_ptr_nonnull(memory);
        be_host_free(&rig.be, memory);
        more[i] = (struct ticket){.request = {.op = BE_ABORT, .abort = {.word = &word, .value = (uint64_t)i + 1}}};
        rig_submit(&rig, &more[i]);
        ck_assert_uint_eq(rig_poll(&rig, 0), 0);
        ck_assert_ptr_nonnull(be_facts(&rig.be));
    }
    uint64_t progress = be_progress(&rig.be);
    ck_assert_uint_lt(mla_now_ns() - from, 1 * MLA_NS_PER_S);
    usleep(50000);
    ck_assert_uint_eq(be_progress(&rig.be), progress); /* the watchdog sees it */
    let_go();
    rig_wait(&rig, &more[99]);
    ck_assert_int_eq(map.error.code, MLA_OK);
    ck_assert_uint_eq(word, 100);
    ck_assert_int_eq(rig_unmap(&rig, &region), MLA_OK);
    close(region.fd);
    rig_close(&rig);
    assert_all_is_freed();
}
END_TEST

START_TEST(open_has_a_deadline)
{
    struct be be;
    struct mla_error err = {.code = MLA_OK};
    struct be_config config = {.workspace_bytes = MIB, .host_bytes = MIB};
    cu_open_deadline_ns = 200 * MLA_NS_PER_MS;
    hold("cuDevicePrimaryCtxRetain");
    uint64_t from = mla_now_ns();
    ck_assert_int_eq(be_open(&be, &be_cuda_ops, &config, &err), MLA_DEVICE_LOST);
    ck_assert_uint_lt(mla_now_ns() - from, 5 * MLA_NS_PER_S);
    ck_assert_ptr_nonnull(strstr(err.text, "does not answer"));
    let_go();
    assert_all_is_freed();
}
END_TEST

START_TEST(close_has_a_deadline)
{
    struct rig rig = cuda_rig();
    cu_close_deadline_ns = 200 * MLA_NS_PER_MS;
    hold("cuStreamSynchronize");
    uint64_t from = mla_now_ns();
    rig_close(&rig);
    ck_assert_uint_lt(mla_now_ns() - from, 5 * MLA_NS_PER_S);
    let_go();
    assert_all_is_freed();
}
END_TEST

MLA_SUITE(be_cuda_faults)
{
    TCase *tc = mla_tcase_timeout(suite, "every call", 200);
    tcase_add_test(tc, every_call_fails_once);
    tcase_add_test(tc, every_call_is_out_of_memory_once);
    tcase_add_test(tc, every_call_loses_the_device_once);
    tcase_add_loop_test(tc, every_call_of_graphs, 0, 4);
    tcase_add_test(tc, everything_executed_loses_the_device_once);
    tcase_add_test(tc, every_call_of_copies);
    tc = mla_tcase(suite, "calls that do not return");
    tcase_add_test(tc, a_blocked_call_does_not_block_the_loop);
    tcase_add_test(tc, open_has_a_deadline);
    tcase_add_test(tc, close_has_a_deadline);
}
