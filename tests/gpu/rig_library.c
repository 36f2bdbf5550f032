#include "tests/gpu/rig_library.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "kernels/host/internal.h"
#include "tests/support/reference.h"

/* P is rounded to 11 bits, and 131,072 keys are summed in the f32 accumulators of the tensor cores: what an element of
 * O was seen to be off by at most, with room, relative to its row. */
#define ACCURACY_F16_P 3e-3

/* The sections that are tested. */
static struct variant {
    const char *name;
    double accuracy;
} variants[KERNELS_MANIFEST_SECTIONS];
static int n_variants;

/* Memory beyond the partials that a launch of any case here may need. */
#define SCRATCH_BYTES (64u << 20)

struct lib lib;

void lib_ok(CUresult result, const char *call)
{
    if (result != CUDA_SUCCESS)
        ck_abort_msg("%s: %s", call, cuda_driver_error(&lib.driver, result));
}

static uint64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

void lib_context(void)
{
    char why[512] = "";
    CUcontext context;
    ck_assert_msg(cuda_driver_open(NULL, &lib.driver, why, sizeof(why)) == 0, "%s", why);
    LIB_OK(cuDeviceGet(&lib.device, 0));
    LIB_OK(cuDevicePrimaryCtxRetain(&context, lib.device));
    LIB_OK(cuCtxSetCurrent(context));
}

int lib_probe(void)
{
    fflush(NULL);
    pid_t child = fork();
    if (child == 0) {
        struct cuda_driver driver;
        char why[512] = "";
        int major = 0;
        int rc = cuda_driver_open(NULL, &driver, why, sizeof(why));
        if (rc == 0 &&
            (driver.cuDeviceGetAttribute(&major, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, 0) != CUDA_SUCCESS ||
             major < 8)) {
            rc = -ENODEV;
            snprintf(why, sizeof(why), "device 0 is older than compute capability 8.0");
        }
        if (rc != 0)
            printf("skipped: %s\n", why);
        fflush(NULL);
        _exit(rc == 0 ? 0 : 77);
    }
    int status = 0;
    if (child < 0 || waitpid(child, &status, 0) != child || !WIFEXITED(status))
        return 1;
    return WEXITSTATUS(status);
}

static bool is_listed(const char *name)
{
    for (int i = 0; i < n_variants; i++)
        if (strcmp(variants[i].name, name) == 0)
            return true;
    return false;
}

/* The kernels with a prepare kernel are those that have P in e4m3. */
static void list_section(const struct kernels_section *section)
{
    if (!is_listed(section->name))
        variants[n_variants++] =
            (struct variant){section->name, section->prepare_threads != 0 ? REF_ACCURACY_E4M3_P : ACCURACY_F16_P};
}

/* A list that comes out empty would pass every test without having run one. */
static void list_failed(const char *what, const char *why)
{
    fprintf(stderr, "%s: %s\n", what, why);
    exit(1);
}

int rig_backends(void)
{
    static struct kernels_manifest manifest;
    const char *only = getenv("MLA_TEST_VARIANT");
    char directory[PATH_MAX], path[PATH_MAX + 16], why[1024] = "";
    if (n_variants > 0)
        return n_variants;
    int rc = kernels_find_directory(NULL, directory, sizeof(directory), why, sizeof(why));
    snprintf(path, sizeof(path), "%s/%s", directory, KERNELS_MANIFEST_NAME);
    if (rc != 0 || kernels_manifest_read(path, &manifest, why, sizeof(why)) != 0)
        list_failed("kernels", why);
    for (uint32_t i = 0; i < manifest.n_sections; i++) {
        const struct kernels_section *section = &manifest.sections[i];
        if (only != NULL ? strcmp(only, section->name) == 0 : !section->by_name_only)
            list_section(section);
        while (only == NULL && !manifest.sections[i].by_name_only && section->few_rows[0] != '\0') {
            section = kernels_manifest_find(&manifest, section->few_rows);
            list_section(section);
        }
    }
    if (n_variants == 0)
        list_failed(only != NULL ? only : path, "no variant that is tested (MLA_TEST_VARIANT)");
    return n_variants;
}

const char *lib_variant(int index)
{
    return variants[index].name;
}

static void take_facts(uint64_t workspace_bytes)
{
    const struct mla_kernels_facts *facts = mla_kernels_facts(lib.kernels);
    lib.facts.name = facts->variant;
    snprintf(lib.facts.gpu_uuid, sizeof(lib.facts.gpu_uuid), "%s", facts->gpu_uuid);
    snprintf(lib.facts.device_name, sizeof(lib.facts.device_name), "%s", facts->device_name);
    lib.facts.device = facts->device;
    lib.facts.costs = facts->costs;
    lib.facts.tile_rows = facts->tile_rows;
    lib.facts.workspace_bytes = workspace_bytes;
}

bool rig_open_config(struct rig *rig, int index, const struct be_config *config)
{
    const char *only = getenv("MLA_TEST_VARIANT");
    char why[1024] = "";
    memset(rig, 0, sizeof(*rig));
    memset(&lib, 0, sizeof(lib));
    if (index >= rig_backends())
        return false;
    const struct variant *variant = &variants[index];
    lib_context();
    struct mla_kernels_options options = {
        .size = sizeof(options), .variant = variant->name, .programmatic = getenv("MLA_TEST_PROGRAMMATIC") != NULL};
    int rc = mla_kernels_open(&lib.driver, &options, &lib.kernels, why, sizeof(why));
    if (rc == -ENOTSUP && only == NULL) {
        rig_close(rig);
        return false;
    }
    ck_assert_msg(rc == 0, "%d: %s", rc, why);
    LIB_OK(cuStreamCreate(&lib.stream, CU_STREAM_NON_BLOCKING));
    if (config->workspace_bytes > 0)
        LIB_OK(cuMemAlloc(&lib.workspace, config->workspace_bytes + SCRATCH_BYTES));
    lib.workspace_bytes = config->workspace_bytes + SCRATCH_BYTES;
    take_facts(config->workspace_bytes);
    rig->facts = &lib.facts;
    rig->shared = &mem_cuda;
    rig->accuracy = variant->accuracy;
    return true;
}

bool rig_open(struct rig *rig, int index)
{
    struct be_config config = {.workspace_bytes = 64u << 20};
    return rig_open_config(rig, index, &config);
}

void rig_close(struct rig *rig)
{
    if (lib.exec)
        LIB_OK(cuGraphExecDestroy(lib.exec));
    if (lib.graph)
        LIB_OK(cuGraphDestroy(lib.graph));
    if (lib.blob)
        LIB_OK(cuMemFreeHost(lib.blob));
    if (lib.blob_copy)
        LIB_OK(cuMemFree(lib.blob_copy));
    if (lib.workspace)
        LIB_OK(cuMemFree(lib.workspace));
    if (lib.stream)
        LIB_OK(cuStreamDestroy(lib.stream));
    mla_kernels_close(lib.kernels);
    LIB_OK(cuDevicePrimaryCtxRelease(lib.device));
    memset(&lib, 0, sizeof(lib));
    memset(rig, 0, sizeof(*rig));
}

void lib_upload(CUdeviceptr to, const void *from, size_t bytes)
{
    LIB_OK(cuMemcpyHtoD(to, from, bytes));
    LIB_OK(cuCtxSynchronize());
}

static void grow_blob(size_t bytes)
{
    if (bytes <= lib.blob_bytes)
        return;
    if (lib.blob)
        LIB_OK(cuMemFreeHost(lib.blob));
    if (lib.blob_copy)
        LIB_OK(cuMemFree(lib.blob_copy));
    LIB_OK(cuMemHostAlloc(&lib.blob, bytes, CU_MEMHOSTALLOC_DEVICEMAP));
    LIB_OK(cuMemHostGetDevicePointer(&lib.blob_device, lib.blob, 0));
    LIB_OK(cuMemAlloc(&lib.blob_copy, bytes));
    lib.blob_bytes = bytes;
}

/* The plan and the records, where the device reads them. Of four batches that are launched directly, one has them
 * copied to device memory, one in pinned host memory, one with the launch, where they fit, and one has them fetched; of
 * two that are captured, one has them fetched. Nothing is in flight here. */
static void write_blob(const struct be_batch *batch)
{
    size_t bytes = mla_kernels_blob_bytes(lib.kernels, batch->plan, batch->n_jobs, batch->n_seqs);
    uint32_t turn = lib.n_blobs++;
    enum lib_records way = lib.mode == LIB_DIRECT ? turn % 4 : turn % 2 ? LIB_FETCHED : LIB_COPIED;
    lib.used_bytes = bytes;
    grow_blob(bytes);
    uint64_t workspace_bytes =
        mla_kernels_workspace_bytes(lib.kernels, batch->plan, batch->n_jobs, batch->seqs, batch->n_seqs);
    ck_assert_uint_le(workspace_bytes, lib.workspace_bytes);
    int rc = mla_kernels_blob_write(lib.kernels, batch->plan, batch->jobs, batch->n_jobs, batch->seqs, batch->n_seqs,
                                    lib.blob, way == LIB_IN_PLACE ? lib.blob_device : lib.blob_copy, lib.workspace,
                                    &lib.launch);
    ck_assert_msg(rc == 0, "no tensor map of a plane: %d", rc);
    if (way == LIB_INLINE && !mla_kernels_takes_blob(lib.kernels, &lib.launch, bytes))
        way = LIB_FETCHED;
    if (way == LIB_FETCHED && !mla_kernels_facts(lib.kernels)->scratch)
        way = LIB_COPIED;
    lib.records = way;
    if (way == LIB_COPIED)
        lib_upload(lib.blob_copy, lib.blob, bytes);
    else if (way != LIB_IN_PLACE)
        LIB_OK(cuMemsetD8Async(lib.blob_copy, 0xff, bytes, lib.stream)); /* what an earlier one left does not help */
}

static void launch(void)
{
    CUresult result = CUDA_SUCCESS;
    int rc;
    if (lib.records == LIB_INLINE)
        rc = mla_kernels_launch_blob(lib.kernels, lib.stream, &lib.launch, lib.blob, lib.used_bytes, &result);
    else if (lib.records == LIB_FETCHED)
        rc = mla_kernels_launch_fetch(lib.kernels, lib.stream, &lib.launch, lib.blob_device, lib.used_bytes,
                                      MLA_KERNELS_ALL, &result);
    else
        rc = mla_kernels_launch(lib.kernels, lib.stream, &lib.launch, &result);
    ck_assert_msg(rc == 0, "launch: %d, %s", rc, cuda_driver_error(&lib.driver, result));
}

static void capture(const struct be_batch *batch)
{
    if (lib.exec)
        LIB_OK(cuGraphExecDestroy(lib.exec));
    if (lib.graph)
        LIB_OK(cuGraphDestroy(lib.graph));
    write_blob(batch);
    LIB_OK(cuStreamBeginCapture(lib.stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
    launch();
    LIB_OK(cuStreamEndCapture(lib.stream, &lib.graph));
    LIB_OK(cuGraphInstantiate(&lib.exec, lib.graph, 0));
}

/* A variant does all launches of its round. */
void rig_fit(const struct rig *rig, struct plan_request *request)
{
    (void)rig;
    (void)request;
}

/* Launches are waited for at once: the blob is free again afterwards. */
void rig_submit(struct rig *rig, struct ticket *ticket)
{
    ck_assert_int_eq(ticket->request.op, BE_LAUNCH);
    struct be_batch *batch = ticket->request.batch;
    ck_assert_uint_eq(batch->n_done, 0);
    batch->started_ns = now_ns();
    if (lib.mode == LIB_DIRECT) {
        write_blob(batch);
        launch();
    } else {
        if (lib.mode == LIB_CAPTURE)
            capture(batch);
        LIB_OK(cuGraphLaunch(lib.exec, lib.stream));
    }
    ticket->submitted_at = ++rig->n_events;
    LIB_OK(cuStreamSynchronize(lib.stream));
    batch->ended_ns = now_ns();
    ticket->ended_at = ++rig->n_events;
}

void rig_wait(struct rig *rig, struct ticket *ticket)
{
    (void)rig;
    ck_assert_uint_ne(ticket->ended_at, 0);
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
