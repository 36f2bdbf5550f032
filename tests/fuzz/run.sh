#!/bin/bash
# Fuzzes targets one after the other and writes what came of it.
#   tests/fuzz/run.sh [-t SECONDS] [-b BUILD] [-r RESULTS] [-k KEEP] [TARGET ...]
# SECONDS per target, 60 if not given; TARGET fuzz_frame, ...: all of tests/fuzz/corpus if not given. The tree is
# configured and the target built in BUILD (build/fuzz) with clang, libFuzzer, AddressSanitizer and
# UndefinedBehaviorSanitizer, without backends (clang 14 makes no clones of functions that other files call). What the
# seeds grow into goes to KEEP/TARGET (build/fuzz-found) and is where the next run starts, beside the seeds. RESULTS
# (build/fuzz-results) gets TARGET.txt, one "name value" a line:
#   commit, changed (files that differ from it), clang, seconds asked, wall_seconds, cpu_seconds, executions, coverage
#   (edges reached) of (edges there are), features, corpus and its bytes, rss_mb, finds (inputs that crashed, leaked, took
#   over 5 s or over 2 GB), and for each its file, which lies in KEEP/TARGET.finds.
# Exit 0 when nothing was found, 1 when something was, 2 when it could not run.
set -u
cd "$(dirname "$0")/../.." || exit 2
seconds=60 build=build/fuzz results=build/fuzz-results keep=build/fuzz-found
while getopts t:b:r:k: option; do
  case $option in
    t) seconds=$OPTARG ;;
    b) build=$OPTARG ;;
    r) results=$OPTARG ;;
    k) keep=$OPTARG ;;
    *) exit 2 ;;
  esac
done
shift $((OPTIND - 1))
if [ $# -gt 0 ]; then targets=("$@"); else mapfile -t targets < <(ls tests/fuzz/corpus); fi
for target in "${targets[@]}"; do
  [ -d "tests/fuzz/corpus/$target" ] || { echo "$0: no target $target" >&2; exit 2; }
done
mkdir -p "$results" "$keep" || exit 2

found=0
for target in "${targets[@]}"; do
  log=$keep/$target.log
  # One build at a time, also where two of these run side by side.
  {
    flock 9 && CC=clang cmake --preset dev -B "$build" -DMLAD_FUZZ=ON -DMLAD_CUDA=OFF -DMLAD_CPU_BACKEND=OFF &&
      cmake --build "$build" --parallel 2 --target "$target"
  } 9>"$build.lock" >"$log" 2>&1 || { tail -n 30 "$log" >&2; exit 2; }
  mkdir -p "$keep/$target" "$keep/$target.finds"
  # A copy: the build may change while it runs.
  cp "$build/tests/fuzz/$target" "$keep/$target.program" || exit 2
  before=$(find "$keep/$target.finds" -type f | wc -l)
  commit=$(git rev-parse --short HEAD 2>/dev/null || echo none)
  changed=$(git status --porcelain -- proto kernels/plan kernels/abi daemon client tests/fuzz tests/scenario tests/support 2>/dev/null | wc -l)
  begin=$(date +%s)
  dictionary=()
  [ ! -f "tests/fuzz/dictionaries/$target" ] || dictionary=("-dict=tests/fuzz/dictionaries/$target")
  TIMEFORMAT='cpu %U %S'
  { time UBSAN_OPTIONS=print_stacktrace=1 "$keep/$target.program" -max_total_time="$seconds" -print_final_stats=1 \
    -timeout=5 -rss_limit_mb=2048 -max_len=65536 -use_value_profile=1 "${dictionary[@]}" -artifact_prefix="$keep/$target.finds/" \
    "$keep/$target" "tests/fuzz/corpus/$target"; } >"$log" 2>&1
  status=$?
  wall=$(($(date +%s) - begin))
  mapfile -t finds < <(find "$keep/$target.finds" -type f -printf '%f\n' | sort)
  new=$((${#finds[@]} - before))
  [ "$status" -eq 0 ] || [ "$new" -gt 0 ] || { tail -n 30 "$log" >&2; exit 2; }
  last=$(grep -E '^#[0-9]+.*cov: ' "$log" | tail -n 1)
  {
    echo "target $target"
    echo "commit $commit"
    echo "changed $changed"
    echo "clang $(clang --version | sed -n 's/.*version \([0-9.]*\).*/\1/p;1q')"
    echo "seconds $seconds"
    echo "wall_seconds $wall"
    echo "cpu_seconds $(sed -n 's/^cpu //p' "$log" | tail -n 1 | awk '{printf "%.0f", $1 + $2}')"
    echo "executions $(sed -n 's/^stat::number_of_executed_units: *//p' "$log")"
    echo "coverage $(sed -n 's/.* cov: \([0-9]*\).*/\1/p' <<<"$last") of $(sed -n 's/.*Loaded [0-9]* modules *(\([0-9]*\) inline.*/\1/p' "$log")"
    echo "features $(sed -n 's/.* ft: \([0-9]*\).*/\1/p' <<<"$last")"
    echo "corpus $(sed -n 's/.* corp: \([^ ]*\).*/\1/p' <<<"$last")"
    echo "rss_mb $(sed -n 's/^stat::peak_rss_mb: *//p' "$log")"
    echo "finds $new"
    if [ "$new" -gt 0 ]; then
      find "$keep/$target.finds" -type f -newermt "@$begin" -printf 'find %f\n' | sort
      found=1
    fi
  } >"$results/$target.txt"
  paste -sd, "$results/$target.txt" | sed 's/,/, /g'
done
exit $found
