"""Every header compiles alone, and twice. Usage: headers.py ROOT CC CXX [FLAG ...]

Internal headers as C17 with the tree's strictness; public ones (client/include) as C11 and as C++17, pedantic, without
_GNU_SOURCE. The flags are include folders of libraries. Headers that need cuda.h are left out when --no-cuda is among
the flags.
"""
import concurrent.futures
import subprocess
import sys

import tree

NEEDS_CUDA = (
    "kernels/host/", "daemon/backend/cuda/", "client/cuda/", "tests/gpu/", "tests/bench/gpu/",
    "tests/support/fake_cuda/",
)
STRICT = ["-Wall", "-Wextra", "-Werror", "-fsyntax-only"]
INTERNAL = ["-std=c17", "-D_GNU_SOURCE", "-Wshadow", "-Wvla", "-Wstrict-prototypes"]


def compile_header(root, name, command, what):
    public = name.startswith("client/include/")
    line = f"#include <{name.removeprefix('client/include/')}>\n" if public else f'#include "{name}"\n'
    tail = "int lint_unit_is_not_empty;\n"
    run = subprocess.run(command + ["-"], input=2 * line + tail, capture_output=True, text=True, cwd=root)
    return [] if run.returncode == 0 else [f"{name} as {what}:\n{run.stderr}"]


def check(root, cc, cxx, flags):
    include = ["-Iclient/include"]
    jobs = []
    no_cuda = "--no-cuda" in flags
    flags = [flag for flag in flags if flag != "--no-cuda"]
    for name in tree.sources(root, (".h",)):
        if no_cuda and name.startswith(NEEDS_CUDA):
            continue
        if name.startswith("client/include/"):
            pedantic = STRICT + ["-pedantic"] + include
            jobs.append((root, name, [cc, "-xc", "-std=c11"] + pedantic, "C11"))
            jobs.append((root, name, [cxx, "-xc++", "-std=c++17"] + pedantic, "C++17"))
        else:
            jobs.append((root, name, [cc, "-xc"] + INTERNAL + STRICT + ["-I."] + include + flags, "C17"))
    with concurrent.futures.ThreadPoolExecutor(max_workers=2) as pool:
        return [problem for found in pool.map(lambda job: compile_header(*job), jobs) for problem in found]


if __name__ == "__main__":
    if len(sys.argv) < 4:
        sys.exit(f"usage: {sys.argv[0]} ROOT CC CXX [FLAG ...]")
    sys.exit(tree.report(check(sys.argv[1], sys.argv[2], sys.argv[3], sys.argv[4:]), "headers compile alone"))
