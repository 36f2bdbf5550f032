#include <stdio.h>

#include "deploy/quickstart/memory.h"

const struct memory *memory_cuda(void)
{
    fprintf(stderr, "this worker was built without CUDA, and the daemon wants device memory\n");
    return NULL;
}
