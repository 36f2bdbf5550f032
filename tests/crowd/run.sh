#!/bin/bash
# The long form: 64 clients for a minute on each backend that can do without a GPU, in a build with ThreadSanitizer. All
# processes go on after a report; the log of results has what the program says, the number of reports and the reports.
#   tests/crowd/run.sh BUILD [SECONDS] [CLIENTS] [SEED]      results in tests/crowd/results
set -u
cd "$(dirname "$0")/../.." || exit 2
if [ $# -lt 1 ] || [ ! -x "$1/tests/crowd/mlad-crowd" ]; then
  echo "usage: tests/crowd/run.sh BUILD [SECONDS] [CLIENTS] [SEED]" >&2
  exit 2
fi
build=$(realpath "$1")
seconds=${2:-60}
clients=${3:-64}
seed=${4:-$RANDOM}
commit=$(git rev-parse --short=12 HEAD)
day=$(date -u +%F)
export MLA_CUDA_DRIVER=$build/tests/support/fake_cuda/libmla_fake_cuda.so MLA_KERNELS_DIR=$build/kernels
backends=(cpu)
[ -e "$MLA_CUDA_DRIVER" ] && backends+=(cuda)
# ThreadSanitizer wants its shadow where some kernels' address randomisation puts mappings.
fixed=()
setarch "$(uname -m)" -R true 2>/dev/null && fixed=(setarch "$(uname -m)" -R)
mkdir -p tests/crowd/results
failed=0
for backend in "${backends[@]}"; do
  reports=$(mktemp -d)
  log=tests/crowd/results/$day-$backend.log
  TSAN_OPTIONS="halt_on_error=0:exitcode=0:second_deadlock_stack=1:atexit_sleep_ms=10:log_path=$reports/report" "${fixed[@]}" \
    "$build/tests/crowd/mlad-crowd" --clients "$clients" --seconds "$seconds" --seed "$seed" --backend "$backend" \
    --commit "$commit" >"$log" 2>"$reports/said" || failed=1
  found=$(cat "$reports"/report.* 2>/dev/null | grep -c '^WARNING: ThreadSanitizer')
  [ "$found" -eq 0 ] || failed=1
  {
    echo "reports of ThreadSanitizer: $found"
    cat "$reports"/report.* 2>/dev/null
    grep -v ' level=\(info\|notice\) ' "$reports/said"
  } >>"$log"
  cat "$log"
  rm -r "$reports"
done
exit "$failed"
