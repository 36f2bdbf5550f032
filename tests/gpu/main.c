/* gpu_kernels: libmla-kernels on a real GPU. Exit 77 where there is none; else as every Check program (names of suites
 * as arguments). --variants: names of the sections of kernels.ini that it tests, without a GPU. */
#include <stdio.h>
#include <string.h>

#include "tests/gpu/check_suites.h"
#include "tests/gpu/rig_library.h"

int main(int argc, char **argv)
{
    if (argc == 2 && strcmp(argv[1], "--variants") == 0) {
        for (int i = 0, n = rig_backends(); i < n; i++)
            puts(lib_variant(i));
        return 0;
    }
    int probed = lib_probe();
    return probed != 0 ? probed : mla_check_main(argc, argv);
}
