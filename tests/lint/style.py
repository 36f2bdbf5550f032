"""What the text of the tree looks like. Usage: style.py ROOT layout|length|text|format|shell"""
import os
import re
import shutil
import subprocess
import sys

import tree

SKIPPED = 77  # CTest's SKIP_RETURN_CODE: the tool is not installed

TOP_LEVEL = {
    "CMakeLists.txt", "CMakePresets.json", "LICENSE", "README.md", "client", "daemon", "deploy", "kernels", "proto",
    "tests", ".ci", ".clang-format", ".clang-tidy", ".editorconfig", ".gitignore",
}
MAX_LINES = 600
# The public header is the library's reference too, and there is only one.
MAX_LINES_OF = {"client/include/mla/mla.h": 900}
CODE = (".c", ".h", ".cu", ".cuh", ".py", ".sh", ".cmake", ".proto", "CMakeLists.txt", ".ci/run")
# Golden output, fuzz inputs and figures are data, not text of ours.
DATA = re.compile(r"tests/.*(corpus|golden)|tests/(bench|soak)/results/.*\.(png|svg)$|LICENSE$")
# In two halves, so that this file passes its own check.
UNFINISHED = re.compile(r"\b(" + "|".join(("TO" + "DO", "FIX" + "ME", "XX" + "X", "HA" + "CK")) + r")\b")


def layout(root):
    names = {name.split("/")[0] for name in tree.files(root)}
    return [f"{name}: does not belong at the top level" for name in sorted(names - TOP_LEVEL)]


def length(root):
    problems = []
    for name in tree.sources(root, CODE):
        lines = 0 if DATA.match(name) else tree.read(root, name).count("\n")
        limit = MAX_LINES_OF.get(name, MAX_LINES)
        if lines > limit:
            problems.append(f"{name}: {lines} lines, more than {limit}")
    return problems


def text(root):
    problems = []
    for name in tree.files(root):
        if DATA.match(name):
            continue
        try:
            content = tree.read(root, name)
        except UnicodeDecodeError:
            problems.append(f"{name}: not UTF-8 text")
            continue
        if content and not content.endswith("\n"):
            problems.append(f"{name}: no newline at its end")
        for number, line in enumerate(content.split("\n"), 1):
            if UNFINISHED.search(line):
                problems.append(f"{name}:{number}: unfinished work belongs in an issue: {line.strip()}")
            if line != line.rstrip() or "\t" in line:
                problems.append(f"{name}:{number}: tab or blanks at its end")
    return problems


def run_tool(tool, arguments):
    if shutil.which(tool) is None:
        print(f"{tool} is not installed")
        sys.exit(SKIPPED)
    run = subprocess.run([tool] + arguments, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    return [] if run.returncode == 0 else [run.stdout.rstrip()]


def paths(root, names):
    return [os.path.join(root, name) for name in names]


def format_(root):
    names = paths(root, tree.sources(root))
    return run_tool("clang-format", ["--dry-run", "-Werror", "--style=file"] + names) if names else []


def shell(root):
    names = [n for n in tree.files(root) if n.endswith(".sh") or n == ".ci/run"]
    return run_tool("shellcheck", ["-x", "-P", root] + paths(root, names)) if names else []


CHECKS = {"layout": layout, "length": length, "text": text, "format": format_, "shell": shell}

if __name__ == "__main__":
    if len(sys.argv) != 3 or sys.argv[2] not in CHECKS:
        sys.exit(f"usage: {sys.argv[0]} ROOT {'|'.join(CHECKS)}")
    sys.exit(tree.report(CHECKS[sys.argv[2]](sys.argv[1]), sys.argv[2]))
