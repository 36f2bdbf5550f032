#include "tests/support/rig.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "tests/support/cuda_exporter.h"
#include "tests/support/reference.h"

#define WAIT_MS   60000
#define EVENT_CAP 16

int rig_backends(void)
{
    const char *only = getenv("MLA_TEST_BACKEND");
    int n = 0;
    if (only != NULL && be_find(only) == NULL) { /* or every test would pass without having run */
        fprintf(stderr, "MLA_TEST_BACKEND=%s: this build has no such backend\n", only);
        exit(1);
    }
    while (be_all[n] != NULL)
        n++;
    return n;
}

bool rig_open_config(struct rig *rig, int index, const struct be_config *config)
{
    const struct be_ops *ops = be_all[index];
    const char *only = getenv("MLA_TEST_BACKEND");
    bool embedded = strcmp(ops->name, "cpu") == 0;
    struct mla_error err = {0};
    memset(rig, 0, sizeof(*rig));
    if (only != NULL && strcmp(only, ops->name) != 0)
        return false;
#if defined(MLA_TEST_CUDA)
    if (strcmp(ops->name, "cuda") == 0)
        exporter_start(); /* before this process calls CUDA */
#endif
    int result = be_open(&rig->be, ops, config, &err);
    if (result != 0 && !embedded && only == NULL) {
        printf("backend %s is not available here: %s\n", ops->name, err.text);
        return false;
    }
    ck_assert_msg(result == 0, "backend %s does not open: %d %s", ops->name, result, err.text);
    rig->facts = be_facts(&rig->be);
    rig->shared = &mem_memfd;
#if defined(MLA_TEST_CUDA)
    if (strcmp(ops->name, "cuda") == 0)
        rig->shared = &mem_cuda;
#endif
    rig->accuracy = embedded ? REF_ACCURACY_F32_P : REF_ACCURACY_E4M3_P;
    return true;
}

bool rig_open(struct rig *rig, int index)
{
    struct be_config config = {.threads = 2, .workspace_bytes = 64u << 20};
    return rig_open_config(rig, index, &config);
}

void rig_close(struct rig *rig)
{
    be_close(&rig->be);
}

static void book(struct rig *rig, const struct be_event *event)
{
    ck_assert_msg(rig->lost.code == MLA_OK, "an event after BE_FATAL");
    if (event->kind == BE_FATAL && rig->may_be_lost) {
        ck_assert_ptr_null(event->request);
        ck_assert_int_eq(event->error.code, MLA_DEVICE_LOST);
        rig->lost = event->error;
        return;
    }
    ck_assert_msg(event->kind != BE_FATAL, "device lost: %s", event->error.text);
    struct ticket *t = event->request->user;
    uint64_t now = ++rig->n_events;
    ck_assert_ptr_eq(event->request, &t->request);
    ck_assert_msg(t->ended_at == 0, "an event after the request had ended");
    switch (event->kind) {
    case BE_DONE:
        ck_assert_int_ne(t->request.op, BE_LAUNCH);
        ck_assert_int_ne(t->request.op, BE_WATCH);
        t->error = event->error;
        t->ended_at = now;
        break;
    case BE_READY:
        ck_assert_int_eq(t->request.op, BE_WATCH);
        ck_assert_uint_eq(t->ready_at, 0);
        t->aborted = event->aborted;
        t->ready_at = now;
        break;
    case BE_SUBMITTED:
        ck_assert_int_eq(t->request.op, BE_LAUNCH);
        ck_assert_uint_eq(t->submitted_at, 0);
        t->submitted_at = now;
        break;
    case BE_BATCH_DONE:
        ck_assert_int_eq(t->request.op, BE_LAUNCH);
        ck_assert_msg(t->submitted_at != 0, "BATCH_DONE before SUBMITTED");
        t->ended_at = now;
        break;
    default:
        ck_abort_msg("event kind %d", event->kind);
    }
}

size_t rig_poll(struct rig *rig, int ms)
{
    struct be_event events[EVENT_CAP];
    struct pollfd fd = {.fd = be_event_fd(&rig->be), .events = POLLIN};
    if (poll(&fd, 1, ms) <= 0)
        return 0;
    size_t n = be_poll(&rig->be, events, EVENT_CAP);
    for (size_t i = 0; i < n; i++)
        book(rig, &events[i]);
    return n;
}

void rig_fit(const struct rig *rig, struct plan_request *request)
{
    be_fit(&rig->be, request);
}

void rig_submit(struct rig *rig, struct ticket *ticket)
{
    ticket->request.user = ticket;
    ticket->submitted_at = 0;
    ticket->ready_at = 0;
    ticket->ended_at = 0;
    ticket->aborted = false;
    memset(&ticket->error, 0, sizeof(ticket->error));
    int result;
    while ((result = be_submit(&rig->be, &ticket->request)) == -EAGAIN)
        rig_poll(rig, 100);
    ck_assert_int_eq(result, 0);
}

void rig_wait(struct rig *rig, struct ticket *ticket)
{
    int idle_ms = 0;
    while (rig->lost.code == MLA_OK && ticket->ended_at == 0 &&
           !(ticket->request.op == BE_WATCH && ticket->ready_at != 0)) {
        if (rig_poll(rig, 1000) == 0)
            idle_ms += 1000;
        ck_assert_msg(idle_ms < WAIT_MS, "no answer to request kind %d in %d ms", ticket->request.op, WAIT_MS);
    }
}

static enum mla_status map_or_unmap(struct rig *rig, enum be_op op, struct be_region *region)
{
    struct ticket ticket = {.request = {.op = op, .region = region}};
    rig_submit(rig, &ticket);
    rig_wait(rig, &ticket);
    return ticket.error.code;
}

enum mla_status rig_map(struct rig *rig, struct be_region *region)
{
    return map_or_unmap(rig, BE_MAP, region);
}

enum mla_status rig_unmap(struct rig *rig, struct be_region *region)
{
    return map_or_unmap(rig, BE_UNMAP, region);
}

int rig_memfd(uint64_t size, bool sealed)
{
    int fd = memfd_create("mla-test", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    ck_assert_int_ge(fd, 0);
    ck_assert_int_eq(ftruncate(fd, (off_t)size), 0);
    if (sealed)
        ck_assert_int_eq(fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK), 0);
    return fd;
}

bool rig_unreadable(const void *address, size_t bytes)
{
    FILE *maps = fopen("/proc/self/maps", "re");
    uintptr_t begin = (uintptr_t)address;
    char line[512];
    bool readable = false;
    ck_assert_ptr_nonnull(maps);
    while (fgets(line, sizeof(line), maps) != NULL) {
        uintptr_t from;
        uintptr_t to;
        char mode;
        if (sscanf(line, "%" SCNxPTR "-%" SCNxPTR " %c", &from, &to, &mode) == 3 && mode == 'r' &&
            from < begin + bytes && begin < to)
            readable = true;
    }
    fclose(maps);
    return !readable;
}

void mem_take(struct rig *rig, struct mem *mem, const struct mem_ops *ops, size_t bytes, unsigned flags)
{
    memset(mem, 0, sizeof(*mem));
    mem->ops = ops;
    mem->bytes = bytes;
    ops->take(rig, mem, bytes, flags);
}

void mem_drop(struct rig *rig, struct mem *mem)
{
    if (mem->ops != NULL)
        mem->ops->drop(rig, mem);
    memset(mem, 0, sizeof(*mem));
}

void mem_forget(struct mem *mem)
{
    mem->ops->forget(mem);
    memset(mem, 0, sizeof(*mem));
}

void mem_push(struct rig *rig, struct mem *mem)
{
    if (mem->ops != NULL)
        mem->ops->push(rig, mem, 0, mem->bytes);
}

void mem_pull(struct rig *rig, struct mem *mem)
{
    if (mem->ops != NULL)
        mem->ops->pull(rig, mem, 0, mem->bytes);
}
