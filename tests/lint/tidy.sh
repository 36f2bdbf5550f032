#!/bin/sh
# clang-tidy over the sources of a build folder's compile_commands.json, two at a time.
#   tests/lint/tidy.sh BUILD_DIR            all of them
#   tests/lint/tidy.sh BUILD_DIR COMMIT     those that differ from COMMIT; all if a header does
set -eu
root=$(cd "$(dirname "$0")/../.." && pwd)
build=${1:?usage: tidy.sh BUILD_DIR [COMMIT]}
cd "$root"
[ -f "$build/compile_commands.json" ] || { echo "tidy: no compile_commands.json in $build" >&2; exit 2; }

list=$(mktemp)
trap 'rm -f "$list"' EXIT
# Generated sources lie in the build folder and are not ours.
sed -n 's/^ *"file": "\(.*\)",\{0,1\}$/\1/p' "$build/compile_commands.json" |
  sed -n "s|^$root/||p" | grep -v '^build/' | sort -u >"$list"
if [ $# -gt 1 ]; then
  changed=$(git diff --name-only "$2" -- '*.c' '*.h')
  case "$changed" in
    *.h*) ;;
    *) printf '%s\n' "$changed" | sort | comm -12 - "$list" >"$list.new" && mv "$list.new" "$list" ;;
  esac
fi
echo "tidy: $(wc -l <"$list") files"
status=0
# One file a process: given several, the analyzer takes a started va_list for an uninitialised one.
xargs -r -P 2 -n 1 clang-tidy --quiet -p "$build" <"$list" 2>/dev/null || status=1
[ "$status" -eq 0 ] && echo "tidy: clean"
exit "$status"
