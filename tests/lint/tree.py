"""Files of the source tree, for the lints. Paths are relative to the root, with slashes."""
import os
import shutil
import subprocess
import sys


def files(root):
    """All files that belong to the tree: git's list (tracked, and new ones not ignored), else all outside build/."""
    if os.path.exists(os.path.join(root, ".git")) and shutil.which("git"):
        git = subprocess.run(
            ["git", "-C", root, "ls-files", "-z", "--cached", "--others", "--exclude-standard"], capture_output=True)
        if git.returncode == 0:
            names = sorted(set(os.fsdecode(git.stdout).split("\0")) - {""})
            return [name for name in names if os.path.isfile(os.path.join(root, name))]
    found = []
    for folder, folders, names in os.walk(root):
        relative = os.path.relpath(folder, root)
        if relative == ".":
            folders[:] = [f for f in folders if f not in (".git", "build")]
        folders.sort()
        found += [os.path.normpath(os.path.join(relative, name)) for name in sorted(names)]
    return found


def sources(root, suffixes=(".c", ".h")):
    return [name for name in files(root) if name.endswith(suffixes)]


def read(root, name):
    with open(os.path.join(root, name), encoding="utf-8") as f:
        return f.read()


def report(problems, what):
    """Prints the problems and returns the exit status of a lint."""
    for problem in problems:
        print(problem)
    print(f"{what}: {len(problems)} problem(s)")
    return 1 if problems else 0


def root_argument():
    if len(sys.argv) < 2:
        sys.exit(f"usage: {sys.argv[0]} ROOT ...")
    return sys.argv[1]
