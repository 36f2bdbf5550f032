#include "kernels/host/cuda_driver.h"

#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DEFAULT_LIBRARY "libcuda.so.1"

/* The name of the symbol, after cuda.h has mapped it to the version that its prototype describes. */
#define TEXT(name)   #name
#define SYMBOL(name) TEXT(name)

#define DRIVER_SYMBOL(name) SYMBOL(name),
#define DRIVER_OFFSET(name) offsetof(struct cuda_driver, name),
static const char *const symbols[] = {CUDA_DRIVER_LIST(DRIVER_SYMBOL)};
static const size_t offsets[] = {CUDA_DRIVER_LIST(DRIVER_OFFSET)};

/* All entries are pointers to functions; POSIX gives them as pointers to void. */
static int resolve(struct cuda_driver *driver, const char *path, char *why, size_t why_bytes)
{
    _Static_assert(sizeof(driver->cuInit) == sizeof(void *), "pointers of one size");
    for (size_t i = 0; i < sizeof symbols / sizeof symbols[0]; i++) {
        void *symbol = dlsym(driver->library, symbols[i]);
        if (!symbol) {
            snprintf(why, why_bytes, "%s has no %s: the driver is too old for this build", path, symbols[i]);
            return -ENOSYS;
        }
        memcpy((char *)driver + offsets[i], &symbol, sizeof symbol);
    }
    return 0;
}

static int start(struct cuda_driver *driver, const char *path, char *why, size_t why_bytes)
{
    int needed = CUDA_VERSION / 1000;
    CUresult result = driver->cuDriverGetVersion(&driver->version);
    if (result != CUDA_SUCCESS || driver->version / 1000 < needed) {
        snprintf(why, why_bytes, "%s is a driver for CUDA %d.%d, this build needs %d.0 or newer", path,
                 driver->version / 1000, driver->version % 1000 / 10, needed);
        return -ENOSYS;
    }
    result = driver->cuInit(0);
    if (result != CUDA_SUCCESS) {
        snprintf(why, why_bytes, "the CUDA driver finds no GPU: %s", cuda_driver_error(driver, result));
        return -ENODEV;
    }
    return 0;
}

int cuda_driver_open(const char *path, struct cuda_driver *driver, char *why, size_t why_bytes)
{
    memset(driver, 0, sizeof *driver);
    if (!path)
        path = getenv("MLA_CUDA_DRIVER");
    if (!path || path[0] == '\0')
        path = DEFAULT_LIBRARY;
    driver->library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!driver->library) {
        snprintf(why, why_bytes, "no CUDA driver: %s", dlerror());
        return -ENOENT;
    }
    int rc = resolve(driver, path, why, why_bytes);
    if (rc == 0)
        rc = start(driver, path, why, why_bytes);
    if (rc != 0)
        cuda_driver_close(driver);
    return rc;
}

void cuda_driver_close(struct cuda_driver *driver)
{
    if (driver->library)
        dlclose(driver->library);
    memset(driver, 0, sizeof *driver);
}

const char *cuda_driver_error(const struct cuda_driver *driver, CUresult result)
{
    /* One string of the driver holds the name, another the text; both together need storage that nobody frees. */
    static _Thread_local char text[256];
    const char *name = NULL;
    const char *words = NULL;
    if (!driver->cuGetErrorName || driver->cuGetErrorName(result, &name) != CUDA_SUCCESS || !name)
        name = "unknown CUDA error";
    if (!driver->cuGetErrorString || driver->cuGetErrorString(result, &words) != CUDA_SUCCESS || !words)
        words = "no description";
    snprintf(text, sizeof text, "%s: %s", name, words);
    return text;
}
