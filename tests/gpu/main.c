/* gpu_kernels: libmla-kernels on a real GPU. Exit 77 where there is none; else as every Check program (names of suites
 * as arguments). */
#include "tests/gpu/check_suites.h"
#include "tests/gpu/rig_library.h"

int main(int argc, char **argv)
{
    int probed = lib_probe();
    return probed != 0 ? probed : mla_check_main(argc, argv);
}
