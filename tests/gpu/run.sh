#!/bin/bash
# The GPU suite, from the folder of a portable build: one line per test with its time, then a summary and a log.
#   tests/gpu/run.sh DIR [options]
#     --quick          about a minute: the daemon, memory, a selection of the kernels
#     --log FILE       the log; otherwise $OUT/gpu.log, or gpu.log here
#     --time SECONDS   for all of it (480; with --quick 120): what does not fit fails with "no time left"
#     --only SECTION   one of host kernels backend daemon mps examples sanitizer race timing; may be given more than once
# Exit 0 when nothing failed, 1 when something did, 77 where there is no GPU. Goes on behind failures.
#
# host: suites that need no GPU, on this machine. kernels: libmla-kernels alone. backend: the conformance suite on the
# CUDA backend. daemon: real daemons and worker processes, isolated. mps: the same under an MPS server of its own, which
# is started here on a private pipe folder and ended here. sanitizer: compute-sanitizer on a short list of shapes. race:
# which orders of accesses its racecheck understands. MLA_SANITIZER=program: another one than the machine's.
set -u

usage() {
  sed -n '2,/^set/{/^#/s/^# \{0,1\}//p}' "$0"
  exit 2
}

dir=
quick=0
log=${OUT:-.}/gpu.log
seconds=
only=
while [ $# -gt 0 ]; do
  case $1 in
    --quick) quick=1 ;;
    --log) log=${2:?"--log needs a file"}; shift ;;
    --time) seconds=${2:?"--time needs seconds"}; shift ;;
    --only) only+=" ${2:?"--only needs a section"}"; shift ;;
    -*) usage ;;
    *) [ -z "$dir" ] || usage; dir=$1 ;;
  esac
  shift
done
[ -x "$dir/mlad-tests" ] || usage
dir=$(cd "$dir" && pwd)
[ -n "$seconds" ] || seconds=$((quick ? 120 : 480))
[ -e /dev/nvidiactl ] || [ -n "${MLA_CUDA_DRIVER:-}" ] || { echo "skipped: no GPU"; exit 77; }

now_ms() { echo $(($(date +%s%N) / 1000000)); }
begin_ms=$(now_ms)
left() { echo $((seconds - ($(now_ms) - begin_ms) / 1000)); }

work=$(mktemp -d "${TMPDIR:-/tmp}/mla-gpu.XXXXXX")
mps_running=0
clean_up() {
  trap - EXIT INT TERM
  local pids
  pids=$(jobs -p)
  # shellcheck disable=SC2086 # one word per process
  [ -z "$pids" ] || kill $pids 2>/dev/null
  mps_stop
  rm -rf "$work"
}
trap clean_up EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

# Without a server on its pipe folder a process runs isolated, whatever runs on the default one.
export CUDA_MPS_PIPE_DIRECTORY=$work/none
export MLA_TEST_BACKEND=cuda
unset CUDA_MPS_LOG_DIRECTORY

# ---- what is printed and counted ----

passed=0
failed=0
skipped=0
: >"$log" || exit 2
say() { printf '%s\n' "$*" | tee -a "$log"; }

# Lines of one run: result, name, seconds, text, with tabs between.
report() { # run's number
  local result name time text
  while IFS=$'\t' read -r result name time text; do
    case $result in
      ok) passed=$((passed + 1)); text= ;;
      skip) skipped=$((skipped + 1)) ;;
      *) failed=$((failed + 1)) ;;
    esac
    say "$(printf '%-4s %8.3f s  %s%s' "$result" "$time" "$name" "${text:+: $text}")"
  done <"$work/$1.lines"
  ! grep -q '^FAIL' "$work/$1.lines" || report_output "$work/$1.out" >>"$log"
}

# What a sanitizer says goes first and apart: its first lines matter, of the rest the last ones do.
report_output() { # file
  local said
  said=$(grep -c '^=========' "$1")
  if [ "$said" -gt 0 ]; then
    echo "---- compute-sanitizer, $((said < 100 ? said : 100)) of $said lines"
    grep -m 100 '^=========' "$1" | sed 's/ *$//'
  fi
  echo "---- output of the run"
  grep -v '^=========' "$1" | tail -c 20000
  echo "----"
}

# ---- one run of a program ----

# Check's XML: a line per test function, with the number of its repetition when it has one.
tests_of() { # label, xml
  awk -F '[<>]' -v label="$1" '
    function plain(s) {
      gsub(/&quot;/, "\"", s); gsub(/&apos;/, "\047", s); gsub(/&lt;/, "<", s); gsub(/&gt;/, ">", s); gsub(/&amp;/, "\\&", s)
      gsub(/\t/, " ", s)
      return s
    }
    /<title>/ { suite = $3 }
    /<test result=/ { split($2, part, "\""); result = part[2] }
    /<id>/ { id = $3 }
    /<iteration>/ { n = $3 }
    /<duration>/ { time = $3 }
    /<message>/ { text = $3 }
    /<\/test>/ {
      if (time < 0) time = 0
      repeat = (n > 0) ? "[" n "]" : ""
      printf "%s\t%s/%s/%s%s\t%s\t%s\n", (result == "success") ? "ok" : "FAIL", label, suite, id, repeat, time, plain(text)
    }' "$2"
}

run_program() { # run's number, label, limit in seconds, command...
  local id=$1 label=$2 limit=$3 from rc time
  shift 3
  from=$(now_ms)
  CK_XML_LOG_FILE_NAME=$work/$id.xml timeout -k 5 "$limit" "$@" >"$work/$id.out" 2>&1 </dev/null
  rc=$?
  time=$(($(now_ms) - from))
  time=$((time / 1000)).$(printf %03d $((time % 1000)))
  : >"$work/$id.lines"
  [ ! -s "$work/$id.xml" ] || tests_of "$label" "$work/$id.xml" >"$work/$id.lines"
  if [ "$rc" -eq 77 ]; then
    printf 'skip\t%s\t%s\t%s\n' "$label" "$time" "$(tail -n 1 "$work/$id.out" | tr '\t' ' ')" >"$work/$id.lines"
  elif [ "$rc" -eq 124 ] || [ "$rc" -eq 137 ]; then
    printf 'FAIL\t%s\t%s\tnot done in %s s\n' "$label" "$time" "$limit" >>"$work/$id.lines"
  elif [ "$rc" -ne 0 ] && ! grep -q '^FAIL' "$work/$id.lines"; then
    printf 'FAIL\t%s\t%s\texit code %s\n' "$label" "$time" "$rc" >>"$work/$id.lines"
  elif [ "$rc" -eq 0 ] && [ ! -s "$work/$id.lines" ]; then
    printf 'ok\t%s\t%s\n' "$label" "$time" >"$work/$id.lines"
  fi
}

runs=0
waiting=() # numbers of runs whose lines are not printed yet
start() { # label, limit, command...: beside what runs already, at most $beside at a time
  local id=$((++runs)) rest
  rest=$(left)
  waiting+=("$id")
  if [ "$rest" -lt 3 ]; then
    printf 'FAIL\t%s\t0\tno time left\n' "$1" >"$work/$id.lines"
    return
  fi
  while [ "$(jobs -pr | wc -l)" -ge "$beside" ]; do wait -n; done
  run_program "$id" "$1" $(($2 < rest ? $2 : rest)) "${@:3}" &
}
finish() {
  local id
  wait
  for id in ${waiting[@]+"${waiting[@]}"}; do report "$id"; done
  waiting=()
}

skip() { # label, why
  skipped=$((skipped + 1))
  say "$(printf '%-4s %8.3f s  %s: %s' skip 0 "$1" "$2")"
}

suites() { "$dir/$1" --list | grep -E -- "$2"; } # program, pattern

# ---- MPS ----

mps_start() {
  command -v nvidia-cuda-mps-control >/dev/null || return 1
  mkdir -p "$work/mps" "$work/mps-log"
  export CUDA_MPS_PIPE_DIRECTORY=$work/mps CUDA_MPS_LOG_DIRECTORY=$work/mps-log
  nvidia-cuda-mps-control -d >"$work/mps.out" 2>&1 || return 1
  mps_running=1
}

mps_stop() {
  [ "$mps_running" -eq 1 ] || return 0
  mps_running=0
  echo quit -t 5 | timeout 15 nvidia-cuda-mps-control >/dev/null 2>&1
  local pid # of the control process, should it not have obeyed
  pid=$(cat "$work/mps/nvidia-cuda-mps-control.pid" 2>/dev/null)
  [ -z "$pid" ] || kill -KILL "$pid" 2>/dev/null
  export CUDA_MPS_PIPE_DIRECTORY=$work/none
  unset CUDA_MPS_LOG_DIRECTORY
}

# ---- sections ----

section_host() {
  local suite
  beside=8
  for suite in $(suites mlad-tests '.' | grep -Ev '^(backend|be_cuda|gpu|client_cuda)'); do start host 120 "$dir/mlad-tests" "$suite"; done
  finish
}

section_kernels() {
  local pattern='.' suite
  [ "$quick" -eq 0 ] || pattern='^(library_open|library|backend_tails|backend_faults)$'
  beside=5
  for suite in $(suites gpu_kernels "$pattern" | grep -Ev '^(timing|sanitizer)$'); do
    start kernels 420 "$dir/gpu_kernels" "$suite"
  done
  finish
  cat "$work"/*.out | grep '^accuracy ' | tee -a "$log"
}

section_backend() {
  local pattern='^(backend|be_cuda)_' suite
  [ "$quick" -eq 0 ] || pattern='^backend_(regions|words|tails|output)$'
  beside=5
  for suite in $(suites mlad-tests "$pattern"); do start backend 240 "$dir/mlad-tests" "$suite"; done
  finish
}

# Bounds on time are part of these: one at a time.
daemon_suites() { # label
  local pattern='^(client_cuda|gpu_)' suite
  [ "$quick" -eq 0 ] || pattern='^(client_cuda_words|gpu_workers|gpu_memory)$'
  beside=1
  for suite in $(suites mlad-tests "$pattern"); do start "$1" 150 "$dir/mlad-tests" "$suite"; done
  finish
}

section_daemon() { MLA_TEST_ISOLATION=isolated daemon_suites daemon; }

section_mps() {
  if ! mps_start; then
    skip mps "no MPS server: $(tail -n 1 "$work/mps.out" 2>/dev/null || echo nvidia-cuda-mps-control is not there)"
    return
  fi
  MLA_TEST_ISOLATION=shared daemon_suites mps
  examples mps
  mps_stop
}

# A daemon and two workers side by side, as a user would start them.
pair() { # worker's program and arguments
  local daemon rc=0 a b socket
  socket=$(mktemp -u "$work/pair.XXXXXX")
  "$dir/mlad" --config /dev/null --socket "$socket" --backend cuda --log-level warning &
  daemon=$!
  "$@" "$socket" & a=$!
  "$@" "$socket" & b=$!
  wait $a || rc=1
  wait $b || rc=1
  kill -TERM $daemon
  wait $daemon || rc=1
  return $rc
}

examples() { # label
  beside=1
  export -f pair
  export dir work
  # shellcheck disable=SC2016 # expanded by that shell
  start "$1/two example workers" 60 bash -c 'pair "$dir/mla_example_worker_cuda"'
  # shellcheck disable=SC2016
  start "$1/two workers of captured steps" 60 bash -c 'pair "$dir/mla_example_worker_step"'
  start "$1/libmla-kernels alone" 30 "$dir/mla_example_kernels"
  finish
}

section_examples() { examples examples; }

find_sanitizer() { # label; sets program
  for program in ${MLA_SANITIZER:-compute-sanitizer /usr/local/cuda/bin/compute-sanitizer}; do
    ! command -v "$program" >/dev/null || return 0
  done
  skip "$1" "compute-sanitizer is not there"
  return 1
}

# MLA_SANITIZER_OPTIONS: more options for compute-sanitizer, separated by blanks.
section_sanitizer() {
  local tool variant more program
  find_sanitizer sanitizer || return 0
  beside=2
  for variant in $("$dir/gpu_kernels" --variants | grep -v '^generic-compute_'); do # that is generic-sm_90a's source
    for tool in memcheck racecheck initcheck synccheck; do
      more=${MLA_SANITIZER_OPTIONS:-}
      [ "$tool" != racecheck ] || more="--racecheck-report all $more"
      # shellcheck disable=SC2086 # one word per option
      MLA_TEST_VARIANT=$variant CK_FORK=no start "sanitizer $tool $variant" 100 "$program" --tool "$tool" \
        --error-exitcode 9 --launch-timeout 60 $more "$dir/gpu_kernels" sanitizer
    done
  done
  finish
}

# A kernel of gpu_race under racecheck: a line of what was expected and found, and whether that agrees. A race may read
# any values, the others must not.
racecheck() { # kernel, expected
  local said hazards wrong found=clean
  said=$("$program" --tool racecheck --racecheck-report all --print-limit 1000 "$dir/gpu_race" "$1" 2>&1)
  printf '%s\n' "$said"
  hazards=$(sed -n 's/.*RACECHECK SUMMARY: \([0-9]*\) hazard.*/\1/p' <<<"$said")
  wrong=$(sed -n "s/^$1: //p" <<<"$said")
  [ "${hazards:-0}" -eq 0 ] || found=reported
  [ -n "$hazards" ] && [ -n "$wrong" ] || found="no answer"
  printf 'racecheck of %-16s expected %-9s found %-9s RAW %d, WAR %d, WAW %d; %s\n' "$1" "$2," "$found:" \
    "$(grep -c 'Potential RAW' <<<"$said")" "$(grep -c 'Potential WAR' <<<"$said")" \
    "$(grep -c 'Potential WAW' <<<"$said")" "${wrong:-no values}"
  [ "$2" = reported ] || [ "$wrong" = "0 wrong values" ] || return 1
  [ "$found" != "no answer" ] && { [ "$2" = either ] || [ "$2" = "$found" ]; }
}

section_race() {
  local kernel expected program id=$((runs + 1))
  find_sanitizer race || return 0
  export -f racecheck
  export dir program
  beside=4
  start "race/plain" 20 "$dir/gpu_race"
  "$dir/gpu_race" --list >"$work/races"
  while read -r kernel expected; do
    # shellcheck disable=SC2016 # expanded by that shell
    start "race/$kernel" 60 bash -c 'racecheck "$@"' racecheck "$kernel" "$expected"
  done <"$work/races"
  finish
  say "compute-sanitizer: $("$program" --version | grep -i '^version')"
  sed 's/^/plain: /' "$work/$id.out" | tee -a "$log"
  for ((id++; id <= runs; id++)); do tail -n 1 "$work/$id.out" | tee -a "$log"; done
}

section_timing() {
  local id
  beside=1
  start timing 120 "$dir/gpu_kernels" timing
  finish
  id=$runs
  grep -E 'us|ns' "$work/$id.out" | tee -a "$log"
}

# ---- all of it ----

say "date    $(date -u '+%Y-%m-%d %H:%M:%S') UTC"
if command -v nvidia-smi >/dev/null; then
  say "gpu     $(nvidia-smi --query-gpu=name,memory.total,mig.mode.current --format=csv,noheader | paste -sd ';')"
  say "driver  $(nvidia-smi --query-gpu=driver_version --format=csv,noheader | head -n 1), $(nvidia-smi | grep -o 'CUDA Version: [0-9.]*')"
fi
say "commit  $(cat "$dir/commit")"
say "host    Linux $(uname -r), $(nproc) CPUs, $(sed -n 's/^PRETTY_NAME="\(.*\)"/\1/p' /etc/os-release), $(ldd --version 2>&1 | head -n 1 | grep -o '[^ ]*$' | sed 's/^/glibc /')"

sections="host kernels backend daemon mps examples sanitizer race timing"
[ "$quick" -eq 0 ] || sections="kernels backend daemon examples"
[ -z "$only" ] || sections=$only
for section in $sections; do
  declare -F "section_$section" >/dev/null || usage
done
for section in $sections; do
  say ""
  say "== $section"
  "section_$section"
done

say ""
say "$passed passed, $failed failed, $skipped skipped, $((seconds - $(left))) s"
[ "$failed" -eq 0 ]
