#include "tests/unit/test_be_cuda.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int cuda_index(void)
{
    for (int i = 0; be_all[i]; i++)
        if (strcmp(be_all[i]->name, "cuda") == 0)
            return i;
    ck_abort_msg("this build has no CUDA backend");
}

struct rig cuda_rig_of(const char *variant)
{
    struct rig rig;
    struct be_config config = {.workspace_bytes = 16u << 20, .host_bytes = 16u << 20, .variant = variant};
    ck_assert_int_eq(setenv("MLA_TEST_BACKEND", "cuda", 1), 0);
    ck_assert(rig_open_config(&rig, cuda_index(), &config));
    return rig;
}

struct rig cuda_rig(void)
{
    return cuda_rig_of(NULL);
}

struct be_region cuda_sync_region(void)
{
    return (struct be_region){.kind = MLA_REGION_MEMFD,
                              .access = MLA_ACCESS_READ_WRITE,
                              .sync = true,
                              .size = 4096,
                              .fd = rig_memfd(4096, true)};
}

struct be_region cuda_region(const struct exported *memory, size_t bytes, enum mla_access access)
{
    struct be_region region = {.kind = memory->kind, .access = access, .size = bytes, .fd = -1};
    if (memory->kind == MLA_REGION_CUDA_IPC) {
        region.ipc_handle = memory->handle;
        region.block_size = memory->block_size;
        region.offset = memory->offset;
    } else {
        region.parts = memory->parts;
        region.n_parts = memory->n_parts;
    }
    return region;
}

void cuda_close_parts(const struct exported *memory)
{
    for (size_t i = 0; i < memory->n_parts; i++)
        close(memory->parts[i].fd);
}

struct mla_error cuda_ask(struct rig *rig, enum be_op op, struct be_region *region)
{
    struct ticket t = {.request = {.op = op, .region = region}};
    rig_submit(rig, &t);
    rig_wait(rig, &t);
    return t.error;
}

/* The driver's library is loaded already, or is loaded now under the same name. */
static void *symbol(const char *name)
{
    const char *path = getenv("MLA_CUDA_DRIVER");
    void *library = path ? dlopen(path, RTLD_NOW | RTLD_LOCAL) : NULL;
    return library ? dlsym(library, name) : NULL;
}

bool cuda_fake_report(struct mla_fake_report *report)
{
    void (*fn)(struct mla_fake_report *) = NULL;
    *(void **)&fn = symbol("mla_fake_report");
    if (fn)
        fn(report);
    return fn != NULL;
}

bool cuda_fake_rules(const char *text)
{
    void (*fn)(const char *) = NULL;
    *(void **)&fn = symbol("mla_fake_rules");
    if (fn)
        fn(text);
    return fn != NULL;
}
