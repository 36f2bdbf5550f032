/* Which backends this build holds; the build system defines MLAD_HAVE_*. */
#include "daemon/backend/backend.h"

#include <string.h>

#include "daemon/backend/null/null.h"

#if defined(MLAD_HAVE_CPU_BACKEND)
#include "daemon/backend/cpu/cpu.h"
#endif
#if defined(MLAD_HAVE_CUDA_BACKEND)
#include "daemon/backend/cuda/cuda.h"
#endif

const struct be_ops *const be_all[] = {
#if defined(MLAD_HAVE_CPU_BACKEND)
    &be_cpu_ops,
#endif
#if defined(MLAD_HAVE_CUDA_BACKEND)
    &be_cuda_ops,
#endif
    NULL,
};

const struct be_ops *be_find(const char *name)
{
    for (size_t i = 0; be_all[i]; i++)
        if (strcmp(be_all[i]->name, name) == 0)
            return be_all[i];
    return strcmp(name, be_null_ops.name) == 0 ? &be_null_ops : NULL;
}
