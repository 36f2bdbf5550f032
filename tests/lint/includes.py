"""Direction of dependencies: which folder may include which. Usage: includes.py ROOT

The table is the rule; a folder without a row may not exist. A module is the longest row that is a prefix of the path.
"""
import re
import sys

import tree

VALUES = ("proto/status.h", "proto/error.h", "proto/enums.h")

# module: what it may include beside itself. A name that ends in .h allows that one header.
ALLOWED = {
    "proto": (),
    "kernels/abi": (),
    "kernels/plan": ("kernels/abi",),
    "kernels/host": ("kernels/plan", "kernels/abi", "kernels/sm90/launch.h"),
    "kernels/ptx": (),
    "kernels/device": ("kernels/ptx", "kernels/abi"),
    "kernels/generic": ("kernels/device", "kernels/ptx", "kernels/abi"),
    "kernels/reduce": ("kernels/sm90/launch.h", "kernels/device", "kernels/ptx", "kernels/abi"),
    "kernels/sm90": ("kernels/device", "kernels/ptx", "kernels/abi"),
    "kernels/baseline": ("kernels/sm90", "kernels/device", "kernels/ptx", "kernels/host", "kernels/plan", "kernels/abi"),
    "daemon/util": (),
    "daemon/sched": ("kernels/plan", "daemon/util") + VALUES,
    "daemon/net": ("proto", "daemon/util"),
    "daemon/backend": ("kernels/plan", "kernels/abi", "daemon/util") + VALUES,
    "daemon/backend/registry.c": ("daemon/backend", "daemon/backend/cpu", "daemon/backend/cuda"),  # the list of backends
    "daemon/backend/cpu": ("daemon/backend", "kernels/plan", "kernels/abi", "daemon/util") + VALUES,
    "daemon/backend/cuda": ("daemon/backend", "kernels/host", "kernels/plan", "kernels/abi", "daemon/util") + VALUES,
    "daemon/ctl": ("client", "client/include", "proto", "kernels/plan", "kernels/abi", "daemon/util"),
    "client": ("client/include", "proto", "daemon/util"),
    "client/include": (),
    "client/examples": ("client/include",),
    # Its table of the driver is the kernels' one, so that there is one list of entry points and one way to open them.
    "client/cuda": ("client/include", "kernels/host/cuda_driver.h", "daemon/util"),
    "daemon/main.c": ("daemon/app", "daemon/util"),
    "daemon/app": ("client/include", "proto", "kernels/plan", "kernels/abi", "daemon/util", "daemon/sched", "daemon/net",
               "daemon/backend"),
    "tests": ("*",),
    "deploy": ("client/include",),
    # Its check is the float64 reference of the tests, its driver the one table of the tree.
    "deploy/quickstart": ("client/include", "tests", "kernels/host/cuda_driver.h"),
}

# Headers from outside: only the files that match may include them. Tests may include any but those of the second table.
OUTSIDE = (
    (r"uv\.h|uv/.*", r"daemon/(net|app)/.*"),
    (r"ini\.h", r"daemon/app/.*|kernels/host/.*"),
    (r"cblas\.h|.*openblas.*", r"daemon/backend/cpu/.*"),
    (r"cuda.*\.h|nv.*\.h", r"daemon/backend/cuda/.*|client/cuda/.*|client/examples/.*|kernels/(?!abi/|plan/).*"),
)
OUTSIDE_TESTS_TOO = (
    (r".*\.pb-c\.h", r"proto/codec[^/]*\.c"),
    (r"protobuf-c/.*", r"proto/codec[^/]*"),
    # ThreadSanitizer does not see threads that thrd_create() makes, and crashes in them.
    (r"threads\.h", r"(?!)"),
)

INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*(["<])([^">]+)[">]', re.MULTILINE)


def module_of(path):
    parts = path.split("/")
    for n in range(len(parts), 0, -1):
        name = "/".join(parts[:n])
        if name in ALLOWED:
            return name
    return None


def may_include(module, target):
    allowed = ALLOWED[module]
    return "*" in allowed or target in allowed or module_of(target) in (module,) + tuple(allowed)


def check(root):
    problems = []
    sources = tree.sources(root, (".c", ".h", ".cu", ".cuh"))
    known = set(sources)
    for path in sources:
        module = module_of(path)
        if module is None:
            problems.append(f"{path}: its folder has no row in the dependency table")
            continue
        text = tree.read(root, path)
        for match in INCLUDE.finditer(text):
            quote, target = match.groups()
            where = f"{path}:{text.count(chr(10), 0, match.start()) + 1}"
            outside = OUTSIDE_TESTS_TOO + (() if module == "tests" else OUTSIDE)
            for header, users in outside:
                if re.fullmatch(header, target) and not re.fullmatch(users, path):
                    problems.append(f"{where}: <{target}> does not belong here")
            if quote == "<" and target.startswith("mla/"):
                target = "client/include/" + target
            elif quote == "<" or target.endswith(".pb-c.h"):
                continue
            if target not in known:
                problems.append(f'{where}: "{target}" is not a path from the source root')
            elif not may_include(module, target):
                problems.append(f"{where}: {module} may not include {target}")
    return problems


if __name__ == "__main__":
    sys.exit(tree.report(check(tree.root_argument()), "dependency table"))
