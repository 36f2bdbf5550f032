#!/bin/bash
# Installs what is needed, builds and tests everything, on Debian 12 as root or with sudo; under twenty minutes on
# two cores.
#   tests/run.sh              all stages
#   tests/run.sh STAGE ...    some of: packages dev kernels portable release asan-ubsan tsan tidy
# kernels and portable need nvcc; where there is none they say so and count as skipped.
# A stage that fails does not keep the later ones from running. Exit 0 when all passed. Logs: build/logs/STAGE.log.
set -u
cd "$(dirname "$0")/.." || exit 2
root=$PWD
jobs=$(nproc)
logs=$root/build/logs
mkdir -p "$logs"
# All builds have the same kernels: the first one makes them.
export MLAD_KERNEL_CACHE=$root/build/kernel-cache

configure_and_build() {
  cmake --preset "$1" && cmake --build --preset "$1" --parallel "$jobs"
}

run_ctest() { # preset, ctest arguments
  local preset=$1
  shift
  ctest --test-dir "build/$preset" -j"$jobs" --output-on-failure --no-tests=error "$@"
}

stage_packages() {
  deploy/install-packages.sh deploy/packages.txt tests/packages.txt
}

stage_dev() { # every test, the lints among them
  configure_and_build dev && run_ctest dev -j"$((jobs + 1))" # many wait for another process
}

has_nvcc() { # of a configured build
  [ -s "build/$1/kernels/kernels.ini" ] || { echo "no nvcc that will do"; return 1; }
}

stage_kernels() { # what ptxas says of every kernel: no spill, no stack
  cmake --preset dev && { has_nvcc dev || return 77; } &&
    cmake --build --preset dev --parallel "$jobs" --target mlad_kernel_files && run_ctest dev -R '^lint_resources$'
}

stage_portable() { # the folder for GPU machines; tests/gpu/run.sh runs it there
  cmake --preset dev && { has_nvcc dev || return 77; } && configure_and_build gpu-portable && run_ctest gpu-portable -L '^portable$'
}

stage_release() { # what a distribution builds: the Debian packages, unpacked and used
  configure_and_build package && rm -f build/package/*.deb && (cd build/package && cpack -G DEB) && tests/integration/package.sh build/package
}

stage_asan_ubsan() { # the tree's text is the same: no lints
  configure_and_build asan-ubsan && run_ctest asan-ubsan -j"$((jobs + 1))" -LE '^lint$' # many wait for another process
}

stage_tsan() { # programs with more than one thread
  # ThreadSanitizer wants its shadow where some kernels' address randomisation puts mappings.
  local fixed=()
  setarch "$(uname -m)" -R true 2>/dev/null && fixed=(setarch "$(uname -m)" -R)
  configure_and_build tsan && "${fixed[@]}" ctest --test-dir build/tsan -j"$((jobs + 1))" --output-on-failure --no-tests=error -L '^threads$'
}

stage_tidy() {
  cmake --preset dev >/dev/null && tests/lint/tidy.sh build/dev
}

summary=
failed=0
run_stage() {
  local name=$1 begin=$SECONDS result=ok
  echo "== $name =="
  "stage_${name//-/_}" </dev/null 2>&1 | tee "$logs/$name.log"
  case ${PIPESTATUS[0]} in
    0) ;;
    77) result=skipped ;;
    *) result=FAILED; failed=$((failed + 1)) ;;
  esac
  summary+="$(printf '%-12s %-7s %4d s' "$name" "$result" $((SECONDS - begin)))"$'\n'
}

stages=("$@")
[ $# -gt 0 ] || stages=(packages dev kernels portable release asan-ubsan tsan tidy)
for name in "${stages[@]}"; do
  case $name in
    packages | dev | kernels | portable | release | asan-ubsan | tsan | tidy) ;;
    *) echo "tests/run.sh: no stage $name" >&2; exit 2 ;;
  esac
done
rm -f "$logs"/*.log
for name in "${stages[@]}"; do
  run_stage "$name"
done

echo "== summary =="
printf '%s' "$summary"
# The closing lines of each ctest run, the one of all tests last.
for name in tsan asan-ubsan dev; do
  if grep -q '% tests passed' "$logs/$name.log" 2>/dev/null; then
    echo "-- $name"
    sed -n '/% tests passed/,$p' "$logs/$name.log"
  fi
done
[ "$failed" -eq 0 ]
