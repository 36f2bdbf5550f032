#!/bin/bash
# The long form: ten minutes of chaos on each backend that can do without a GPU, with the results as files.
#   tests/chaos/run.sh BUILD [SECONDS] [SEED]      results in tests/chaos/results
set -u
cd "$(dirname "$0")/../.." || exit 2
if [ $# -lt 1 ] || [ ! -x "$1/tests/chaos/mlad-chaos" ]; then
  echo "usage: tests/chaos/run.sh BUILD [SECONDS] [SEED]" >&2
  exit 2
fi
build=$(realpath "$1")
seconds=${2:-600}
seed=${3:-$RANDOM}
commit=$(git rev-parse --short=12 HEAD)
day=$(date -u +%F)
export MLA_CUDA_DRIVER=$build/tests/support/fake_cuda/libmla_fake_cuda.so MLA_KERNELS_DIR=$build/kernels
backends=(cpu)
[ -e "$MLA_CUDA_DRIVER" ] && backends+=(cuda)
mkdir -p tests/chaos/results
failed=0
for backend in "${backends[@]}"; do
  "$build/tests/chaos/mlad-chaos" --seconds "$seconds" --seed "$seed" --backend "$backend" --workers 8 --commit "$commit" \
    --json "tests/chaos/results/$day-$backend.json" || failed=1
done
exit "$failed"
