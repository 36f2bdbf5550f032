#!/bin/bash
# The long form: ten minutes of chaos on each backend that can do without a GPU, with the results as files.
#   tests/chaos/run.sh BUILD [SECONDS] [SEED] [RESULTS]      RESULTS: tests/chaos/results
set -u
cd "$(dirname "$0")/../.." || exit 2
if [ $# -lt 1 ] || [ ! -x "$1/tests/chaos/mlad-chaos" ]; then
  echo "usage: tests/chaos/run.sh BUILD [SECONDS] [SEED] [RESULTS]" >&2
  exit 2
fi
build=$(realpath "$1")
seconds=${2:-600}
seed=${3:-$RANDOM}
results=${4:-tests/chaos/results}
commit=$(git rev-parse --short=12 HEAD)
# Of what is run here.
[ -z "$(git status --porcelain -- proto client daemon kernels/plan kernels/abi tests/chaos tests/support)" ] || commit+=-dirty
day=$(date -u +%F)
backends=(cpu)
if [ -e "$build/tests/support/fake_cuda/libmla_fake_cuda.so" ]; then
  export MLA_CUDA_DRIVER=$build/tests/support/fake_cuda/libmla_fake_cuda.so
  export MLA_KERNELS_DIR=${MLA_KERNELS_DIR:-$build/kernels}
  # A build of single targets has the list of kernels and not the kernels.
  if compgen -G "$MLA_KERNELS_DIR/*.cubin" >/dev/null; then
    backends+=(cuda)
  else
    echo "no kernels in $MLA_KERNELS_DIR: the CPU backend alone" >&2
  fi
fi
mkdir -p "$results" || exit 2
failed=0
for backend in "${backends[@]}"; do
  "$build/tests/chaos/mlad-chaos" --seconds "$seconds" --seed "$seed" --backend "$backend" --workers 8 --commit "$commit" \
    --json "$results/$day-$backend.json" || failed=1
done
exit "$failed"
