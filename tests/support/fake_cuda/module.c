/* Modules: images are looked at for the names of their entry points and not otherwise. */
#include <elf.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/fake_cuda/fake.h"

#define EM_CUDA_MACHINE 190
#define REGISTERS       128 /* per thread, of every kernel */

static struct CUmod_st *modules; /* under the lock */

/* Bytes of a cubin by its own headers; of PTX by its end; 0 for anything else. */
static size_t image_bytes(const void *image)
{
    Elf64_Ehdr elf;
    if (memcmp(image, ELFMAG, SELFMAG) != 0) {
        const char *text = image;
        text += strspn(text, " \t\r\n");
        return *text == '/' || *text == '.' ? strlen(image) : 0;
    }
    memcpy(&elf, image, sizeof elf);
    return elf.e_machine == EM_CUDA_MACHINE ? elf.e_shoff + (size_t)elf.e_shnum * elf.e_shentsize : 0;
}

static CUresult load(CUmodule *out, const void *image)
{
    if (!out || !image)
        return CUDA_ERROR_INVALID_VALUE;
    size_t bytes = image_bytes(image);
    if (bytes == 0)
        return CUDA_ERROR_INVALID_IMAGE;
    CUmodule module = calloc(1, sizeof *module);
    char *text = malloc(bytes);
    if (!module || !text)
        fake_abort("no memory");
    memcpy(text, image, bytes);
    module->text = text;
    module->text_bytes = bytes;
    module->context = fake_current();
    fake_lock();
    module->next = modules;
    modules = module;
    fake_unlock();
    FAKE_COUNT(modules, 1);
    *out = module;
    return CUDA_SUCCESS;
}

FAKE_API CUresult cuModuleLoadData(CUmodule *out, const void *image)
{
    FAKE_CALL(cuModuleLoadData, FAKE_CONTEXT);
    return load(out, image);
}

FAKE_API CUresult cuModuleLoadDataEx(CUmodule *out, const void *image, unsigned int n_options, CUjit_option *options,
                                     void **values)
{
    FAKE_CALL(cuModuleLoadDataEx, FAKE_CONTEXT);
    if (n_options > 0 && (!options || !values))
        return CUDA_ERROR_INVALID_VALUE;
    return load(out, image);
}

static CUmodule find_module(CUmodule module)
{
    for (CUmodule m = modules; m; m = m->next)
        if (m == module)
            return m;
    return NULL;
}

static void free_module(CUmodule module)
{
    for (struct CUmod_st **at = &modules; *at; at = &(*at)->next)
        if (*at == module) {
            *at = module->next;
            break;
        }
    while (module->functions) {
        CUfunction function = module->functions;
        module->functions = function->next;
        free(function);
    }
    free(module->text);
    free(module);
}

void fake_modules_free(CUcontext context)
{
    CUmodule next;
    for (CUmodule m = modules; m; m = next) {
        next = m->next;
        if (m->context == context)
            free_module(m);
    }
}

static bool is_queued(CUmodule module)
{
    for (CUstream s = fake_stream_first(); s; s = s->next)
        for (const struct fake_op *op = s->head; op; op = op->next)
            if (op->kind == MLA_FAKE_kernel && op->kernel.function->module == module)
                return true;
    return false;
}

FAKE_API CUresult cuModuleUnload(CUmodule handle)
{
    FAKE_CALL(cuModuleUnload, FAKE_CONTEXT | FAKE_UNSAFE);
    fake_lock();
    CUmodule module = find_module(handle);
    if (module) {
        if (is_queued(module))
            fake_abort("cuModuleUnload while a kernel of the module has not ended");
        free_module(module);
        FAKE_COUNT(modules, -1);
    }
    fake_unlock();
    return module ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

bool fake_function_ok(CUfunction function)
{
    for (CUmodule m = modules; m; m = m->next)
        for (CUfunction f = m->functions; f; f = f->next)
            if (f == function)
                return true;
    return false;
}

static enum fake_kernel kernel_of(const char *name)
{
    return strstr(name, "reduce_f16")    ? FAKE_REDUCE_UNITS
           : strstr(name, "reduce")      ? FAKE_REDUCE
           : strstr(name, "prepare")     ? FAKE_PREPARE
           : strstr(name, "decode_sm90") ? FAKE_DECODE_UNITS
           : strstr(name, "decode")      ? FAKE_DECODE
           : strstr(name, "h128_pack")   ? FAKE_H128_PACK
           : strstr(name, "h128_unpack") ? FAKE_H128_UNPACK
           : !strcmp(name, "fake_spin")  ? FAKE_SPIN
           : !strcmp(name, "fake_read")  ? FAKE_READ
           : strstr(name, "mla_bench")   ? FAKE_EMPTY
                                         : 0;
}

FAKE_API CUresult cuModuleGetFunction(CUfunction *out, CUmodule handle, const char *name)
{
    FAKE_CALL(cuModuleGetFunction, FAKE_CONTEXT);
    if (!out || !name || strlen(name) >= sizeof(*out)->name)
        return CUDA_ERROR_INVALID_VALUE;
    fake_lock();
    CUmodule module = find_module(handle);
    CUresult result = module ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
    CUfunction function = module ? module->functions : NULL;
    while (function && strcmp(function->name, name) != 0)
        function = function->next;
    if (module && !function) {
        if (kernel_of(name) == 0 || !memmem(module->text, module->text_bytes, name, strlen(name))) {
            result = CUDA_ERROR_NOT_FOUND;
        } else {
            function = calloc(1, sizeof *function);
            if (!function)
                fake_abort("no memory");
            function->kernel = kernel_of(name);
            strcpy(function->name, name);
            function->dynamic_smem_max = FAKE_SMEM_DEFAULT;
            function->module = module;
            function->next = module->functions;
            module->functions = function;
        }
    }
    fake_unlock();
    if (result == CUDA_SUCCESS)
        *out = function;
    return result;
}

FAKE_API CUresult cuFuncSetAttribute(CUfunction function, CUfunction_attribute attribute, int value)
{
    FAKE_CALL(cuFuncSetAttribute, FAKE_CONTEXT);
    fake_lock();
    CUresult result = fake_function_ok(function) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
    if (result == CUDA_SUCCESS) {
        switch ((int)attribute) {
        case CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES:
            if (value < 0 || value > (int)FAKE_SMEM_OPT_IN)
                result = CUDA_ERROR_INVALID_VALUE;
            else
                atomic_store(&function->dynamic_smem_max, value);
            break;
        case CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT:
            break;
        case CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED:
            atomic_store(&function->non_portable_cluster, value);
            break;
        default:
            result = CUDA_ERROR_INVALID_VALUE;
        }
    }
    fake_unlock();
    return result;
}

/* -1: not one that is known. With or without the lock. */
int fake_function_attribute(CUfunction function, CUfunction_attribute attribute)
{
    switch ((int)attribute) {
    case CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK:
        return 65536 / REGISTERS / 32 * 32;
    case CU_FUNC_ATTRIBUTE_NUM_REGS:
        return REGISTERS;
    case CU_FUNC_ATTRIBUTE_PTX_VERSION:
    case CU_FUNC_ATTRIBUTE_BINARY_VERSION:
        return 10 * fake_config()->major + fake_config()->minor;
    case CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES:
    case CU_FUNC_ATTRIBUTE_CONST_SIZE_BYTES:
    case CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES:
        return 0;
    case CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES:
        return atomic_load(&function->dynamic_smem_max);
    case CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED:
        return atomic_load(&function->non_portable_cluster);
    default:
        return -1;
    }
}

FAKE_API CUresult cuFuncGetAttribute(int *value, CUfunction_attribute attribute, CUfunction function)
{
    FAKE_CALL(cuFuncGetAttribute, FAKE_CONTEXT);
    fake_lock();
    bool known = fake_function_ok(function);
    fake_unlock();
    if (!known)
        return CUDA_ERROR_INVALID_HANDLE;
    int found = fake_function_attribute(function, attribute);
    if (!value || found < 0)
        return CUDA_ERROR_INVALID_VALUE;
    *value = found;
    return CUDA_SUCCESS;
}
