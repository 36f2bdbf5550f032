"""Hardening and linkage of built programs and shared libraries. Usage: binaries.py FILE ...

Position-independent, full RELRO, no executable stack, no CUDA library among the needed ones (the daemon never links
CUDA), and a shared library exports nothing but mla_*.
"""
import os
import re
import subprocess
import sys

import tree


EXPORTED = {"libmla-kernels": r"(mla_kernels|plan|cuda_driver)_"}


def readelf(path, *options):
    return subprocess.run(["readelf", "-W", *options, path], check=True, capture_output=True, text=True).stdout


def check_one(path):
    name = os.path.basename(path)
    header, dynamic, segments = readelf(path, "-h"), readelf(path, "-d"), readelf(path, "-l")
    problems = []
    if not re.search(r"Type:\s+DYN", header):
        problems.append(f"{name}: not position-independent")
    if not re.search(r"\bBIND_NOW\b|\(BIND_NOW\)|Flags:.*\bNOW\b", dynamic):
        problems.append(f"{name}: symbols are bound lazily")
    if "GNU_RELRO" not in segments:
        problems.append(f"{name}: no RELRO segment")
    if re.search(r"GNU_STACK.*\bRWE\b", segments):
        problems.append(f"{name}: executable stack")
    needed = re.findall(r"\(NEEDED\).*\[(.*?)\]", dynamic)
    problems += [f"{name}: links {lib}" for lib in needed if re.match(r"lib(cuda|cudart|cublas|nv)", lib)]
    if ".so" in name:
        exported = [line.split()[-1] for line in readelf(path, "--dyn-syms").splitlines()
                    if re.search(r"\b(GLOBAL|WEAK)\b", line) and " UND " not in line and " ABS " not in line]
        allowed = EXPORTED.get(name.split(".")[0], "mla_")
        problems += [f"{name}: exports {symbol}" for symbol in exported if not re.match(allowed, symbol)]
    return problems


if __name__ == "__main__":
    sys.exit(tree.report([p for path in sys.argv[1:] for p in check_one(path)], f"{len(sys.argv) - 1} binaries"))
