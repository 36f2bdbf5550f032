/* The fake CUDA driver in two processes: memory that crosses, and what is left when one of them goes. */
#include "tests/unit/test_fake_cuda.h"

#include <errno.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#define BLOCK (2 * MIB)

struct message {
    CUipcMemHandle handle;
    CUdeviceptr address;
};

struct peer {
    pid_t pid;
    int fd;
};

/* A failure in the other process ends it; this one then misses its message. */
static void require(bool fine)
{
    if (!fine)
        _exit(3);
}

static void send_with(int fd, const void *data, size_t bytes, const int *fds, size_t n_fds)
{
    union {
        struct cmsghdr header;
        char bytes[CMSG_SPACE(2 * sizeof(int))];
    } control = {.bytes = {0}};
    struct iovec io = {(void *)(uintptr_t)data, bytes};
    struct msghdr message = {.msg_iov = &io, .msg_iovlen = 1};
    if (n_fds > 0) {
        message.msg_control = &control;
        message.msg_controllen = CMSG_SPACE(n_fds * sizeof(int));
        control.header.cmsg_level = SOL_SOCKET;
        control.header.cmsg_type = SCM_RIGHTS;
        control.header.cmsg_len = CMSG_LEN(n_fds * sizeof(int));
        memcpy(CMSG_DATA(&control.header), fds, n_fds * sizeof(int));
    }
    require(sendmsg(fd, &message, 0) == (ssize_t)bytes);
}

static void receive_with(int fd, void *data, size_t bytes, int *fds, size_t n_fds)
{
    union {
        struct cmsghdr header;
        char bytes[CMSG_SPACE(2 * sizeof(int))];
    } control;
    struct iovec io = {data, bytes};
    struct msghdr message = {
        .msg_iov = &io, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control};
    ck_assert_int_eq(recvmsg(fd, &message, 0), (ssize_t)bytes);
    if (n_fds > 0) {
        ck_assert_uint_eq(control.header.cmsg_len, CMSG_LEN(n_fds * sizeof(int)));
        memcpy(fds, CMSG_DATA(&control.header), n_fds * sizeof(int));
    }
}

/* The other process: run() until the socket is closed. Before cuInit, as the driver asks. */
static struct peer start(const char *config, void (*run)(int fd))
{
    int fds[2];
    ck_assert_int_eq(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, fds), 0);
    pid_t pid = fork();
    ck_assert_int_ge(pid, 0);
    if (pid == 0) {
        close(fds[0]);
        setenv("MLA_FAKE_CUDA", config, 1);
        require(cuInit(0) == CUDA_SUCCESS);
        run(fds[1]);
        _exit(0);
    }
    close(fds[1]);
    return (struct peer){pid, fds[0]};
}

static void finish(const struct peer *peer)
{
    close(peer->fd);
    kill(peer->pid, SIGKILL);
    waitpid(peer->pid, NULL, 0);
}

static void exporter_context(int device)
{
    CUcontext context;
    require(cuDevicePrimaryCtxRetain(&context, device) == CUDA_SUCCESS && cuCtxSetCurrent(context) == CUDA_SUCCESS);
}

/* Sends the handle of fresh memory at each request; 'n' frees the old one first, 'r' sends its first bytes. */
static void export_legacy(int fd)
{
    struct message m = {.address = 0};
    char request, bytes[6];
    exporter_context(0);
    while (read(fd, &request, 1) == 1) {
        if (request == 'r') {
            require(cuMemcpyDtoH(bytes, m.address, sizeof bytes) == CUDA_SUCCESS);
            send_with(fd, bytes, sizeof bytes, NULL, 0);
            continue;
        }
        require(cuMemFree(m.address) == CUDA_SUCCESS && cuMemAlloc(&m.address, MIB) == CUDA_SUCCESS);
        require(cuMemcpyHtoD(m.address, "hello", 6) == CUDA_SUCCESS);
        require(cuIpcGetMemHandle(&m.handle, m.address + 100) == CUDA_SUCCESS);
        send_with(fd, &m, sizeof m, NULL, 0);
    }
}

static struct message ask(const struct peer *peer)
{
    struct message m;
    ck_assert_int_eq(write(peer->fd, "n", 1), 1);
    receive_with(peer->fd, &m, sizeof m, NULL, 0);
    return m;
}

START_TEST(a_legacy_handle_opens_once_and_outlives_its_exporter)
{
    struct peer peer = start("", export_legacy);
    fake_test_open("");
    CUdeviceptr p, again, base;
    size_t bytes;
    char back[6];
    struct message m = ask(&peer);
    OK(cuIpcOpenMemHandle(&p, m.handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
    OK(cuIpcOpenMemHandle(&again, m.handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
    ck_assert_uint_eq(p, again);
    fake_test_open_is("contexts=1 ipc_mappings=1 ipc_opens=2");
    OK(cuMemGetAddressRange(&base, &bytes, p + MIB - 1));
    ck_assert_uint_eq(base, p);
    ck_assert_uint_eq(bytes, MIB);
    OK(cuMemcpyDtoH(back, p, 6));
    ck_assert_str_eq(back, "hello");
    OK(cuMemcpyHtoD(p, "HELLO", 6));
    ck_assert_int_eq(write(peer.fd, "r", 1), 1);
    receive_with(peer.fd, back, sizeof back, NULL, 0);
    ck_assert_str_eq(back, "HELLO");
    REFUSED(cuMemFree(p), CUDA_ERROR_INVALID_VALUE);
    REFUSED(cuIpcGetMemHandle(&m.handle, p), CUDA_ERROR_INVALID_VALUE);

    finish(&peer);
    OK(cuMemcpyDtoH(back, p, 6));
    ck_assert_str_eq(back, "HELLO");
    OK(cuIpcCloseMemHandle(p));
    OK(cuMemcpyDtoH(back, p, 6));
    OK(cuIpcCloseMemHandle(p));
    REFUSED(cuMemcpyDtoH(back, p, 6), CUDA_ERROR_INVALID_VALUE);
    REFUSED(cuIpcCloseMemHandle(p), CUDA_ERROR_INVALID_VALUE);
    REFUSED(cuIpcOpenMemHandle(&p, m.handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS), CUDA_ERROR_INVALID_VALUE);
    fake_test_open_is("contexts=1");
}
END_TEST

START_TEST(freed_memory_keeps_its_importer_and_loses_its_handle)
{
    struct peer peer = start("", export_legacy);
    fake_test_open("");
    CUdeviceptr p, q;
    char back[6];
    struct message first = ask(&peer);
    OK(cuIpcOpenMemHandle(&p, first.handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
    OK(cuMemcpyHtoD(p, "first", 6));
    struct message second = ask(&peer);
    ck_assert_mem_ne(&first.handle, &second.handle, sizeof first.handle);
    OK(cuIpcOpenMemHandle(&q, second.handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
    ck_assert_uint_ne(p, q);
    OK(cuMemcpyDtoH(back, p, 6));
    ck_assert_str_eq(back, "first");
    OK(cuMemcpyDtoH(back, q, 6));
    ck_assert_str_eq(back, "hello");
    OK(cuIpcCloseMemHandle(p));
    REFUSED(cuIpcOpenMemHandle(&p, first.handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS), CUDA_ERROR_INVALID_VALUE);
    finish(&peer);
}
END_TEST

START_TEST(handles_that_cannot_be_opened)
{
    CUipcMemHandle handle;
    CUdeviceptr p, q;
    fake_test_open("");
    memset(&handle, 7, sizeof handle);
    REFUSED(cuIpcOpenMemHandle(&p, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS), CUDA_ERROR_INVALID_VALUE);
    OK(cuMemAlloc(&p, 1));
    OK(cuIpcGetMemHandle(&handle, p));
    REFUSED(cuIpcOpenMemHandle(&q, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS), CUDA_ERROR_INVALID_CONTEXT);
    REFUSED(cuIpcOpenMemHandle(&q, handle, 0), CUDA_ERROR_INVALID_VALUE);
    OK(cuMemFree(p));
}
END_TEST

static void export_of_second_device(int fd)
{
    struct message m;
    exporter_context(1);
    require(cuMemAlloc(&m.address, 1) == CUDA_SUCCESS && cuIpcGetMemHandle(&m.handle, m.address) == CUDA_SUCCESS);
    send_with(fd, &m, sizeof m, NULL, 0);
    pause();
}

START_TEST(memory_of_another_gpu)
{
    static const char *const configs[] = {"devices=1", "devices=2"};
    struct peer peer = start("devices=2", export_of_second_device);
    struct message m;
    CUdeviceptr p;
    int ordinal = -1;
    receive_with(peer.fd, &m, sizeof m, NULL, 0);
    fake_test_open(configs[_i]);
    CUresult result = cuIpcOpenMemHandle(&p, m.handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
    if (_i == 0) {
        ck_assert_int_eq(result, CUDA_ERROR_INVALID_DEVICE);
    } else {
        OK(result);
        OK(cuPointerGetAttribute(&ordinal, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, p));
        ck_assert_int_eq(ordinal, 1);
    }
    finish(&peer);
}
END_TEST

static CUmemAllocationProp device_memory_prop(void)
{
    CUmemAllocationProp prop;
    memset(&prop, 0, sizeof prop);
    prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    prop.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    prop.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    return prop;
}

static CUmemAccessDesc access_of(CUmemAccess_flags flags)
{
    CUmemAccessDesc access;
    memset(&access, 0, sizeof access);
    access.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    access.flags = flags;
    return access;
}

/* Two allocations side by side; the text crosses their border. */
static void export_descriptors(int fd)
{
    CUmemAllocationProp prop = device_memory_prop();
    CUmemAccessDesc access = access_of(CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
    CUmemGenericAllocationHandle handle;
    CUdeviceptr base;
    int fds[2];
    exporter_context(0);
    require(cuMemAddressReserve(&base, 2 * BLOCK, 0, 0, 0) == CUDA_SUCCESS);
    for (int i = 0; i < 2; i++) {
        require(cuMemCreate(&handle, BLOCK, &prop, 0) == CUDA_SUCCESS);
        require(cuMemMap(base + (CUdeviceptr)i * BLOCK, BLOCK, 0, handle, 0) == CUDA_SUCCESS);
        require(cuMemExportToShareableHandle(&fds[i], handle, prop.requestedHandleTypes, 0) == CUDA_SUCCESS);
        require(cuMemRelease(handle) == CUDA_SUCCESS);
    }
    require(cuMemSetAccess(base, 2 * BLOCK, &access, 1) == CUDA_SUCCESS);
    require(cuMemcpyHtoD(base + BLOCK - 2, "hello", 6) == CUDA_SUCCESS);
    send_with(fd, &base, sizeof base, fds, 2);
    pause();
}

START_TEST(descriptors_cross_and_keep_their_memory)
{
    struct peer peer = start("", export_descriptors);
    fake_test_open("");
    CUdeviceptr ignored, base;
    CUmemGenericAllocationHandle handles[2];
    CUmemAllocationProp prop;
    CUmemAccessDesc read_only = access_of(CU_MEM_ACCESS_FLAGS_PROT_READ);
    CUipcMemHandle legacy;
    unsigned char capable = 1;
    unsigned long long types = 0;
    char back[6];
    int fds[2];
    receive_with(peer.fd, &ignored, sizeof ignored, fds, 2);
    OK(cuMemAddressReserve(&base, 2 * BLOCK, 0, 0, 0));
    for (int i = 0; i < 2; i++) {
        OK(cuMemImportFromShareableHandle(&handles[i], (void *)(uintptr_t)fds[i],
                                          CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
        close(fds[i]);
        OK(cuMemGetAllocationPropertiesFromHandle(&prop, handles[i]));
        ck_assert_int_eq(prop.requestedHandleTypes, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
        ck_assert_int_eq(prop.location.id, 0);
        REFUSED(cuMemMap(base, 2 * BLOCK, 0, handles[i], 0), CUDA_ERROR_INVALID_VALUE);
        REFUSED(cuMemMap(base, BLOCK, BLOCK, handles[i], 0), CUDA_ERROR_INVALID_VALUE);
        OK(cuMemMap(base + (CUdeviceptr)i * BLOCK, BLOCK, 0, handles[i], 0));
        REFUSED(cuMemMap(base + (CUdeviceptr)i * BLOCK, BLOCK, 0, handles[i], 0), CUDA_ERROR_INVALID_VALUE);
        OK(cuMemRelease(handles[i]));
    }
    REFUSED(cuMemcpyDtoH(back, base + BLOCK - 2, 6), CUDA_ERROR_INVALID_VALUE); /* no access yet */
    OK(cuMemSetAccess(base, 2 * BLOCK, &read_only, 1));
    fake_test_open_is("contexts=1 vmm_reservations=1 vmm_mappings=2");
    finish(&peer);

    OK(cuMemcpyDtoH(back, base + BLOCK - 2, 6));
    ck_assert_str_eq(back, "hello");
    REFUSED(cuMemcpyHtoD(base, "x", 1), CUDA_ERROR_INVALID_VALUE);
    REFUSED(cuIpcGetMemHandle(&legacy, base), CUDA_ERROR_INVALID_VALUE);
    OK(cuPointerGetAttribute(&capable, CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE, base));
    ck_assert_uint_eq(capable, 0);
    OK(cuPointerGetAttribute(&types, CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES, base));
    ck_assert_uint_eq(types, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
    OK(cuMemRetainAllocationHandle(&handles[0], (void *)(uintptr_t)(base + 5)));
    OK(cuMemRelease(handles[0]));
    REFUSED(cuMemUnmap(base, BLOCK / 2), CUDA_ERROR_INVALID_VALUE);
    REFUSED(cuMemAddressFree(base, 2 * BLOCK), CUDA_ERROR_INVALID_VALUE);
    OK(cuMemUnmap(base, 2 * BLOCK));
    OK(cuMemAddressFree(base, 2 * BLOCK));
    REFUSED(cuMemRelease(handles[0]), CUDA_ERROR_INVALID_VALUE);
    fake_test_open_is("contexts=1");
}
END_TEST

START_TEST(foreign_descriptors_are_refused)
{
    CUmemGenericAllocationHandle handle;
    int ends[2];
    fake_test_open("");
    int memory = memfd_create("plain", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    ck_assert_int_eq(ftruncate(memory, (off_t)BLOCK + 4096), 0);
    ck_assert_int_eq(pipe(ends), 0);
    int foreign[] = {memory, ends[0], -1, STDERR_FILENO};
    for (int i = 0; i < 4; i++)
        REFUSED(cuMemImportFromShareableHandle(&handle, (void *)(intptr_t)foreign[i],
                                               CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR),
                CUDA_ERROR_INVALID_VALUE);
    fake_test_open_is("contexts=1");
}
END_TEST

START_TEST(a_child_of_fork_has_no_driver)
{
    int status;
    fake_test_open("");
    pid_t pid = fork();
    if (pid == 0) {
        int count;
        _exit(cuInit(0) == CUDA_ERROR_NOT_INITIALIZED && cuDeviceGetCount(&count) == CUDA_ERROR_NOT_INITIALIZED ? 0
                                                                                                                : 1);
    }
    ck_assert_int_eq(waitpid(pid, &status, 0), pid);
    ck_assert_int_eq(status, 0);
}
END_TEST

START_TEST(counters_are_read_from_outside)
{
    char directory[] = "/tmp/mla-fake-XXXXXX", config[64], file[64];
    struct mla_fake_report report;
    ck_assert_ptr_nonnull(mkdtemp(directory));
    snprintf(config, sizeof config, "report=%s", directory);
    struct peer peer = start(config, export_legacy);
    ask(&peer);
    ck_assert_int_eq(mla_fake_report_read(directory, peer.pid, &report), 0);
    ck_assert_uint_eq(report.allocations, 1);
    ck_assert_uint_eq(report.allocated_bytes, MIB);
    ck_assert_uint_eq(report.calls[MLA_FAKE_cuMemAlloc], 1);
    ask(&peer);
    ck_assert_int_eq(mla_fake_report_read(directory, peer.pid, &report), 0);
    ck_assert_uint_eq(report.allocations, 1);
    ck_assert_uint_eq(report.calls[mla_fake_call_find("cuMemAlloc")], 2);
    finish(&peer);
    ck_assert_int_eq(mla_fake_report_read(directory, peer.pid, &report), 0);
    ck_assert_int_eq(mla_fake_report_read(directory, getpid(), &report), -ENOENT);
    snprintf(file, sizeof file, "%s/%d", directory, (int)peer.pid);
    unlink(file);
    rmdir(directory);
}
END_TEST

MLA_SUITE(fake_cuda_process)
{
    TCase *tc = mla_tcase(suite, "two processes");
    tcase_add_test(tc, a_legacy_handle_opens_once_and_outlives_its_exporter);
    tcase_add_test(tc, freed_memory_keeps_its_importer_and_loses_its_handle);
    tcase_add_test(tc, handles_that_cannot_be_opened);
    tcase_add_loop_test(tc, memory_of_another_gpu, 0, 2);
    tcase_add_test(tc, descriptors_cross_and_keep_their_memory);
    tcase_add_test(tc, foreign_descriptors_are_refused);
    tcase_add_test(tc, a_child_of_fork_has_no_driver);
    tcase_add_test(tc, counters_are_read_from_outside);
}
