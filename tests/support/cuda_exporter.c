#include "tests/support/cuda_exporter.h"

#include <check.h>
#include <errno.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include "kernels/host/cuda_driver.h"

#define BLOCKS_MAX 1024u
#define IPC_LEAD   8192u /* in front of the memory in its block, so that offsets count */

enum op { TAKE = 1, PUSH, PULL, DROP };

struct message {
    enum op op;
    uint32_t id;
    enum mla_region_kind kind;
    uint64_t offset;
    uint64_t bytes;
    size_t n_parts;
};

struct answer {
    char failure[200]; /* "": none */
    struct exported exported;
};

/* ---- the process ---- */

struct block {
    bool used;
    CUdeviceptr address; /* of the memory itself */
    CUdeviceptr base;
    size_t total;
    CUmemGenericAllocationHandle handles[EXPORTER_PARTS_MAX];
    size_t sizes[EXPORTER_PARTS_MAX];
    size_t n_handles; /* 0: cuMemAlloc */
    int fd;           /* of the copy */
    uint8_t *copy;
    size_t bytes;
};

static struct cuda_driver cu;
static bool cu_ready;
static struct block blocks[BLOCKS_MAX];
static char *failure; /* of the answer being made */

static bool ok(CUresult r, const char *call)
{
    if (r != CUDA_SUCCESS && failure[0] == '\0')
        snprintf(failure, sizeof(((struct answer *)NULL)->failure), "%s: %s", call, cuda_driver_error(&cu, r));
    return r == CUDA_SUCCESS;
}

#define OK(call, ...) ok(cu.call(__VA_ARGS__), #call)

/* The GPU of the backend under test: the first, as rig.c opens it. */
static bool get_ready(void)
{
    CUdevice device;
    CUcontext context;
    if (cu_ready)
        return true;
    if (cuda_driver_open(NULL, &cu, failure, sizeof(((struct answer *)NULL)->failure)) != 0)
        return false;
    cu_ready =
        OK(cuDeviceGet, &device, 0) && OK(cuDevicePrimaryCtxRetain, &context, device) && OK(cuCtxSetCurrent, context);
    return cu_ready;
}

static bool take_ipc(struct block *b, struct exported *out)
{
    CUipcMemHandle handle;
    b->total = IPC_LEAD + b->bytes;
    if (!OK(cuMemAlloc, &b->base, b->total) || !OK(cuIpcGetMemHandle, &handle, b->base))
        return false;
    memcpy(out->handle, &handle, sizeof(handle));
    out->block_size = b->total;
    out->offset = IPC_LEAD;
    b->address = b->base + IPC_LEAD;
    return true;
}

static bool take_vmm(struct block *b, size_t n_parts, struct exported *out, int *fds)
{
    CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                .requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
                                .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0}};
    CUmemAccessDesc access = {.location = prop.location, .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    size_t unit = 0;
    if (!OK(cuMemGetAllocationGranularity, &unit, &prop, CU_MEM_ALLOC_GRANULARITY_MINIMUM))
        return false;
    size_t units = (b->bytes + unit - 1) / unit;
    b->total = units * unit;
    out->offset = b->total - b->bytes;
    out->n_parts = units < n_parts ? units : n_parts;
    if (!OK(cuMemAddressReserve, &b->base, b->total, unit, 0, 0))
        return false;
    size_t at = 0;
    for (size_t i = 0; i < out->n_parts; i++) {
        size_t left = out->n_parts - i;
        size_t size = left == 1 ? b->total - at : (i + 1) * unit < b->total - at - left * unit ? (i + 1) * unit : unit;
        if (!OK(cuMemCreate, &b->handles[i], size, &prop, 0))
            return false;
        b->n_handles++;
        b->sizes[i] = size;
        if (!OK(cuMemMap, b->base + at, size, 0, b->handles[i], 0) ||
            !OK(cuMemExportToShareableHandle, &fds[i], b->handles[i], CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0))
            return false;
        out->parts[i] = (struct be_part){-1, i == 0 ? out->offset : 0, i == 0 ? size - out->offset : size, 0};
        at += size;
    }
    b->address = b->base + out->offset;
    return OK(cuMemSetAccess, b->base, b->total, &access, 1);
}

static struct block *new_block(const struct message *m, int fd, uint32_t *id)
{
    for (uint32_t i = 0; i < BLOCKS_MAX; i++) {
        struct block *b = &blocks[i];
        if (b->used)
            continue;
        memset(b, 0, sizeof(*b));
        b->copy = mmap(NULL, m->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        if (b->copy == MAP_FAILED)
            return NULL;
        b->used = true;
        b->fd = fd;
        b->bytes = m->bytes;
        *id = i;
        return b;
    }
    return NULL;
}

/* What the copy holds data for; the rest of a sparse one is not touched on either side. */
static void push(struct block *b, uint64_t offset, uint64_t end)
{
    off_t at = (off_t)offset;
    while ((uint64_t)at < end && (at = lseek(b->fd, at, SEEK_DATA)) >= 0 && (uint64_t)at < end) {
        off_t hole = lseek(b->fd, at, SEEK_HOLE);
        uint64_t stop = hole < 0 || (uint64_t)hole > end ? end : (uint64_t)hole;
        if (!OK(cuMemcpyHtoD, b->address + (CUdeviceptr)at, b->copy + at, stop - (uint64_t)at))
            return;
        at = (off_t)stop;
    }
    /* A small copy from pageable memory may still be under way when the call returns; the daemon is on no stream that
     * waits for it. */
    OK(cuCtxSynchronize);
}

static void drop(struct block *b)
{
    size_t at = 0;
    for (size_t i = 0; i < b->n_handles; at += b->sizes[i++]) {
        OK(cuMemUnmap, b->base + at, b->sizes[i]);
        OK(cuMemRelease, b->handles[i]);
    }
    if (b->n_handles == 0)
        OK(cuMemFree, b->base);
    else
        OK(cuMemAddressFree, b->base, b->total);
    munmap(b->copy, b->bytes);
    close(b->fd);
    b->used = false;
}

static void carry_out(const struct message *m, int fd, struct answer *a, int *fds)
{
    struct block *b = m->op == TAKE ? NULL : &blocks[m->id];
    struct exported *out = &a->exported;
    failure = a->failure;
    if (!get_ready())
        return;
    switch (m->op) {
    case TAKE:
        b = new_block(m, fd, &out->id);
        out->kind = m->kind;
        if (b == NULL)
            snprintf(a->failure, sizeof(a->failure), "no room for the block");
        else if (m->kind == MLA_REGION_CUDA_IPC)
            take_ipc(b, out);
        else
            take_vmm(b, m->n_parts, out, fds);
        break;
    case PUSH:
        push(b, m->offset, m->offset + m->bytes);
        break;
    case PULL:
        OK(cuMemcpyDtoH, b->copy + m->offset, b->address + m->offset, m->bytes);
        break;
    case DROP:
        drop(b);
        break;
    }
}

/* ---- messages ---- */

static bool send_with(int socket, const void *bytes, size_t n, const int *fds, size_t n_fds)
{
    union {
        char room[CMSG_SPACE(EXPORTER_PARTS_MAX * sizeof(int))];
        struct cmsghdr align;
    } control;
    struct iovec iov = {(void *)(uintptr_t)bytes, n};
    struct msghdr msg = {.msg_iov = &iov, .msg_iovlen = 1};
    memset(&control, 0, sizeof(control));
    if (n_fds != 0) {
        msg.msg_control = control.room;
        msg.msg_controllen = CMSG_SPACE(n_fds * sizeof(int));
        struct cmsghdr *c = CMSG_FIRSTHDR(&msg);
        c->cmsg_level = SOL_SOCKET;
        c->cmsg_type = SCM_RIGHTS;
        c->cmsg_len = CMSG_LEN(n_fds * sizeof(int));
        memcpy(CMSG_DATA(c), fds, n_fds * sizeof(int));
    }
    return sendmsg(socket, &msg, MSG_NOSIGNAL) == (ssize_t)n;
}

static bool receive_with(int socket, void *bytes, size_t n, int *fds, size_t max_fds)
{
    union {
        char room[CMSG_SPACE(EXPORTER_PARTS_MAX * sizeof(int))];
        struct cmsghdr align;
    } control;
    struct iovec iov = {bytes, n};
    struct msghdr msg = {
        .msg_iov = &iov, .msg_iovlen = 1, .msg_control = control.room, .msg_controllen = sizeof(control.room)};
    ssize_t got;
    while ((got = recvmsg(socket, &msg, MSG_CMSG_CLOEXEC)) < 0 && errno == EINTR)
        continue;
    if (got != (ssize_t)n)
        return false;
    const struct cmsghdr *c = CMSG_FIRSTHDR(&msg);
    if (c != NULL) {
        size_t count = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
        memcpy(fds, CMSG_DATA(c), (count < max_fds ? count : max_fds) * sizeof(int));
    }
    return true;
}

_Noreturn static void serve(int socket)
{
    struct message m;
    int fd = -1;
    while (receive_with(socket, &m, sizeof(m), &fd, 1)) {
        struct answer a;
        int fds[EXPORTER_PARTS_MAX];
        memset(&a, 0, sizeof(a));
        carry_out(&m, fd, &a, fds);
        size_t n = a.failure[0] == '\0' ? a.exported.n_parts : 0;
        if (!send_with(socket, &a, sizeof(a), fds, n))
            break;
        for (size_t i = 0; i < n; i++)
            close(fds[i]);
        fd = -1;
    }
    _exit(0);
}

/* ---- the test ---- */

static int to_exporter = -1;

void exporter_start(void)
{
    int ends[2];
    if (to_exporter >= 0)
        return;
    ck_assert_int_eq(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends), 0);
    pid_t pid = fork();
    ck_assert_int_ge(pid, 0);
    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        close(ends[0]);
        serve(ends[1]);
    }
    close(ends[1]);
    to_exporter = ends[0];
}

static void ask(const struct message *m, int fd, struct answer *a, int *fds)
{
    ck_assert_msg(send_with(to_exporter, m, sizeof(*m), &fd, fd >= 0) &&
                      receive_with(to_exporter, a, sizeof(*a), fds, EXPORTER_PARTS_MAX),
                  "the exporting process has gone");
    ck_assert_msg(a->failure[0] == '\0', "the exporting process: %s", a->failure);
}

void exporter_take(enum mla_region_kind kind, size_t bytes, size_t n_parts, int copy, struct exported *out)
{
    struct message m = {.op = TAKE, .kind = kind, .bytes = bytes, .n_parts = n_parts};
    struct answer a;
    int fds[EXPORTER_PARTS_MAX];
    ask(&m, copy, &a, fds);
    *out = a.exported;
    for (size_t i = 0; i < out->n_parts; i++)
        out->parts[i].fd = fds[i];
}

static void move(enum op op, const struct exported *memory, size_t offset, size_t bytes)
{
    struct message m = {.op = op, .id = memory->id, .offset = offset, .bytes = bytes};
    struct answer a;
    if (bytes != 0 || op == DROP)
        ask(&m, -1, &a, NULL);
}

void exporter_push(const struct exported *memory, size_t offset, size_t bytes)
{
    move(PUSH, memory, offset, bytes);
}

void exporter_pull(const struct exported *memory, size_t offset, size_t bytes)
{
    move(PULL, memory, offset, bytes);
}

void exporter_drop(const struct exported *memory)
{
    move(DROP, memory, 0, 0);
}
