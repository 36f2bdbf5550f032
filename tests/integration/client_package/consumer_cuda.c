/* A program outside the tree that uses the installed libmla-cuda, without any header or library of CUDA; compiled as C
 * and as C++. */
#include <mla/cuda.h>

#include <stdio.h>

int main(void)
{
    mla_region_id region = 0;
    struct mla_cuda_sync *words = NULL;
    if (mla_cuda_region_register(NULL, 4096, 64, MLA_ACCESS_READ, "x", 0, &region) != MLA_INVALID_ARGUMENT)
        return 1;
    if (mla_cuda_sync_attach(NULL, NULL, &words) != MLA_INVALID_ARGUMENT || words != NULL)
        return 2;
    if (mla_cuda_wait_done(words, 0, 1, NULL) != MLA_INVALID_ARGUMENT || mla_cuda_word(words, 0) != 0)
        return 3;
    printf("libmla-cuda on libmla %s: %s\n", mla_version(), mla_cuda_last_error()->field);
    return 0;
}
