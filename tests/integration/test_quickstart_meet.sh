#!/bin/bash
# The quick start's workers meet, whichever of them is slow: one is stopped for a while when it has come.
#   test_quickstart_meet.sh MLAD WORKER
set -u
mlad=$1 program=$2
run_dir=$(mktemp -d "${TMPDIR:-/tmp}/mlad-meet.XXXXXX")
pids=()
clean_up() {
  [ ${#pids[@]} -eq 0 ] || kill -KILL "${pids[@]}" 2>/dev/null
  wait 2>/dev/null
  rm -rf "$run_dir"
}
trap clean_up EXIT

start() { # name, arguments...
  local name=$1
  shift
  "$program" --socket "$run_dir/mlad.sock" --name "$name" --heads 8 --q-len 1 --kv-len 70 --rounds 1 --seed 1 \
    --table "$run_dir/table.$name" "$@" >"$run_dir/out.$name" &
  pids+=($!)
}

says() { # name, text: within ten seconds
  local tries
  for ((tries = 0; tries < 1000; tries++)); do
    ! grep -q "$2" "$run_dir/out.$1" || return 0
    sleep 0.01
  done
  echo "worker $1 does not say: $2" >&2
  exit 1
}

"$mlad" --backend cpu --socket "$run_dir/mlad.sock" 2>"$run_dir/mlad.log" &
daemon=$!
pids+=("$daemon")
for slow in A B; do
  start A --own "meet-$slow" --layers 1 --pages 8
  owner=${pids[-1]}
  says A published
  if [ "$slow" = A ]; then kill -STOP "$owner"; fi
  start B --attach "meet-$slow"
  guest=${pids[-1]}
  if [ "$slow" = B ]; then kill -STOP "$guest"; else says B attached; fi
  sleep 0.3 # in which the other one could do all it has to do
  kill -CONT "$owner" "$guest"
  for pid in "$owner" "$guest"; do
    wait "$pid" || { echo "a worker ended with exit code $? where $slow is slow" >&2; exit 1; }
  done
  pids=("$daemon")
done
kill -TERM "$daemon"
wait "$daemon"
