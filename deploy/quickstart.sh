#!/bin/bash
# Builds mlad on Debian 12 and shows it at work: one daemon, two worker processes that decode at the same time from the
# KV cache of one of them, every answer checked against float64. Exit 0: all of it went well. On the GPU where there is
# one with nvcc (or with kernels that are built), else on the CPU.
#   deploy/quickstart.sh                 installs what is missing (root or sudo), builds into build/quickstart, runs
#   deploy/quickstart.sh --build DIR     runs what is built in DIR, a build tree or the folder of a portable build;
#                                        installs and builds nothing
#   deploy/quickstart.sh --backend NAME  cpu or cuda, whatever there is
#   deploy/quickstart.sh --short         short contexts, one round
set -euo pipefail
cd "$(dirname "$0")/.."

build=
short=0
backend=
while [ $# -gt 0 ]; do
  case $1 in
    --build) build=${2:?"--build needs a folder"}; shift 2 ;;
    --backend) backend=${2:?"--backend needs a name"}; shift 2 ;;
    --short) short=1; shift ;;
    --help) sed -n '2,/^set/{/^#/s/^# \{0,1\}//p}' "$0"; exit 0 ;;
    *) echo "deploy/quickstart.sh: no such option: $1 (see --help)" >&2; exit 2 ;;
  esac
done

run_dir=
daemon=
declare -A worker=() # name -> pid

say() { printf '\n== %s\n' "$*"; }

fail() {
  printf '\ndeploy/quickstart.sh: %s\n' "$*" >&2
  exit 1
}

end_process() { # pid: asks, then insists
  local pid=$1 tries
  kill -TERM "$pid" 2>/dev/null || return 0
  for ((tries = 0; tries < 50; tries++)); do
    kill -0 "$pid" 2>/dev/null || return 0
    sleep 0.1
  done
  kill -KILL "$pid" 2>/dev/null || true
}

clean_up() {
  local status=$? name
  trap - EXIT INT TERM
  for name in "${!worker[@]}"; do
    end_process "${worker[$name]}"
  done
  [ -z "$daemon" ] || end_process "$daemon"
  if [ "$status" -ne 0 ] && [ -s "$run_dir/mlad.log" ]; then
    echo "-- the last lines of the daemon's log:" >&2
    tail -n 20 "$run_dir/mlad.log" >&2
  fi
  [ -z "$run_dir" ] || rm -rf "$run_dir"
  exit "$status"
}
trap clean_up EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

# In a build tree each has its folder; in a portable build all lie together.
program() { if [ -x "$build/${1##*/}" ]; then echo "$build/${1##*/}"; else echo "$build/$1"; fi; }
ctl() { "$(program daemon/ctl/mlactl)" --socket "$run_dir/mlad.sock" "$@"; }

# ---- build ----

logged() { # what, log, command...: quiet unless it fails
  local what=$1 log=$2
  shift 2
  if ! "$@" >>"$log" 2>&1; then
    tail -n 40 "$log" >&2
    fail "$what failed; all of its output is in $log"
  fi
}

begin=$SECONDS
if [ -z "$build" ]; then
  build=build/quickstart
  say "Packages (deploy/packages.txt)"
  deploy/install-packages.sh || fail "the packages could not be installed"
  say "Build (preset release, into $build)"
  mkdir -p "$build"
  : >"$build/quickstart.log"
  logged "configuring" "$build/quickstart.log" cmake --preset release -B "$build" --compile-no-warning-as-error
  logged "the build" "$build/quickstart.log" \
    cmake --build "$build" --parallel "$(nproc)" --target mlad mlactl mla_quickstart_worker
  echo "built mlad, mlactl and the quick start's worker in $((SECONDS - begin)) s"
fi
for path in daemon/mlad daemon/ctl/mlactl deploy/quickstart/mla_quickstart_worker; do
  [ -x "$(program "$path")" ] || fail "$build/$path is not there"
done
worker_program=$(program deploy/quickstart/mla_quickstart_worker)

# ---- which backend ----

gpu=$(nvidia-smi -L 2>/dev/null | sed -n '1s/ (UUID.*//p') || gpu=
kernels=no
[ ! -s "$build/kernels/kernels.ini" ] || kernels=yes
if [ -n "$backend" ]; then
  why="as asked for"
elif [ -n "$gpu" ] && [ "$kernels" = yes ]; then
  backend=cuda
  why="$gpu"
else
  backend=cpu
  why="no GPU"
  [ -z "$gpu" ] || why="$gpu is there, but no nvcc 12.4 or newer, which the kernels are built with (CUDA_HOME names its folder)"
fi
case $backend in
  cpu) backend_text="CPU backend" ;;
  cuda) backend_text="CUDA backend" ;;
  *) fail "no backend $backend: cpu or cuda" ;;
esac
echo "backend $backend: $why"

# ---- daemon ----

run_dir=$(mktemp -d "${TMPDIR:-/tmp}/mlad-quickstart.XXXXXX")
say "Daemon ($backend_text, configuration deploy/mlad.conf, socket $run_dir/mlad.sock)"
# A CPU takes longer for any of these decodes than a launch may on a GPU, so that each would be cut and none shared.
length=()
[ "$backend" != cpu ] || length=(--set scheduler.max_launch_us=0)
"$(program daemon/mlad)" --config deploy/mlad.conf --backend "$backend" ${length[@]+"${length[@]}"} --socket "$run_dir/mlad.sock" 2>"$run_dir/mlad.log" &
daemon=$!
for ((tries = 0; ; tries++)); do
  kill -0 "$daemon" 2>/dev/null || fail "mlad ended at once: $(tail -n 1 "$run_dir/mlad.log")"
  if ctl --timeout 2 health 2>/dev/null; then break; fi
  [ "$tries" -lt 100 ] || fail "mlad is not ready after 10 s"
  sleep 0.1
done

# ---- workers ----

say "Workers A and B: two processes, started now, decoding side by side"
shape_a=(--heads 96 --q-len 8 --kv-len "3000,1100")
shape_b=(--heads 96 --q-len 4 --kv-len "2048,1000,300,77")
cache=(--layers 3 --pages 200)
rounds=3
if [ "$short" -eq 1 ]; then
  shape_a=(--heads 96 --q-len 8 --kv-len "200,70")
  shape_b=(--heads 96 --q-len 4 --kv-len "130,64,1")
  cache=(--layers 2 --pages 16)
  rounds=1
fi
start_worker() { # name, arguments...
  local name=$1
  shift
  "$worker_program" --socket "$run_dir/mlad.sock" --name "$name" --rounds "$rounds" \
    --seed 2026 --table "$run_dir/table.$name" "$@" &
  worker[$name]=$!
}
start_worker A --own quickstart "${shape_a[@]}" "${cache[@]}"
start_worker B --attach quickstart "${shape_b[@]}"
while [ ${#worker[@]} -gt 0 ]; do
  code=0
  wait -n -p ended "${worker[@]}" || code=$?
  for name in "${!worker[@]}"; do
    if [ "${worker[$name]}" = "${ended:-}" ]; then
      unset "worker[$name]"
      [ "$code" -eq 0 ] || fail "worker $name ended with exit code $code"
    fi
  done
done

# ---- what came of it ----

say "Every answer"
"$worker_program" --header
cat "$run_dir/table.A" "$run_dir/table.B"
answers=$(cat "$run_dir/table.A" "$run_dir/table.B" | wc -l)
shared=$(comm -12 <(awk '{print $8}' "$run_dir/table.A" | sort -u) <(awk '{print $8}' "$run_dir/table.B" | sort -u) | wc -l)
cat <<TEXT
B sequences, H heads, Q query tokens, KV context lengths; every row of O and LSE is compared with float64.
O error: relative L2, the rounding to the output's type included. batch: the launch it ran in, with that many jobs;
$shared of the launches held jobs of both workers.
TEXT

say "Metrics (mlactl metrics, a selection)"
ctl metrics >"$run_dir/metrics"
grep -E '^mlad_(jobs_total.*"OK"|requests_total.*"(DECODE|PUBLISH_CACHE|ATTACH_CACHE)"|batches_total|tiles_total|items_total|split_tiles_total|rows_total|row_slots_total|pages_total|job_(queue|run)_seconds_(sum|count)|connections_accepted_total|protocol_errors_total|caches |mapped_bytes )' \
  "$run_dir/metrics"

metric() { awk -v name="$1" '$1 == name { print $2 }' "$run_dir/metrics"; }
jobs=$(metric 'mlad_jobs_total{status="OK"}')
[ "$jobs" = "$answers" ] || fail "the daemon counts $jobs jobs, the workers have $answers answers"
[ "$(metric mlad_mapped_bytes)" = 0 ] || fail "the daemon still maps memory of workers that have left"

say "Stop (mlactl drain)"
ctl drain || fail "the daemon does not drain"
for ((tries = 0; tries < 200; tries++)); do
  kill -0 "$daemon" 2>/dev/null || break
  sleep 0.1
done
kill -0 "$daemon" 2>/dev/null && fail "mlad still runs 20 s after it was told to drain"
code=0
wait "$daemon" || code=$?
daemon=
[ "$code" -eq 0 ] || fail "mlad ended with exit code $code"
echo "mlad has ended with exit code 0"
say "Done: $answers of $answers answers are right, $((SECONDS - begin)) s in all"
