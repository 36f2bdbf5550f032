"""What ptxas says of the kernels: no spill, no stack frame, none of its C75xx warnings. Usage: resources.py LOG ...

A log is nvcc's output with -Xptxas -v; one of a step that only makes PTX is empty and named *.ptx.log.
"""
import os
import re
import sys

import tree

ENTRY = re.compile(r"Compiling entry function '([^']+)' for '([^']+)'")
FRAME = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")


def check(name, text):
    problems, entry, kernels = [], "?", 0
    for line in text.split("\n"):
        found = ENTRY.search(line)
        if found:
            entry, kernels = f"{found.group(1)} for {found.group(2)}", kernels + 1
        frame = FRAME.search(line)
        if frame:
            stack, stores, loads = (int(n) for n in frame.groups())
            if stack:
                problems.append(f"{name}: {entry}: {stack} bytes of stack frame")
            if stores or loads:
                problems.append(f"{name}: {entry}: spills {stores} bytes, loads {loads} of spilled ones")
        if re.search(r"C75\d\d|\bwarning\b", line):
            problems.append(f"{name}: {entry}: {line.strip()}")
    if kernels == 0 and not name.endswith(".ptx.log"):
        problems.append(f"{name}: no kernel")
    return problems


def main(paths):
    problems = []
    for path in paths:
        name = os.path.basename(path)
        if not os.path.exists(path):
            problems.append(f"{name}: not built")
            continue
        with open(path, encoding="utf-8") as f:
            problems += check(name, f.read())
    return tree.report(problems, f"{len(paths)} reports of ptxas")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
