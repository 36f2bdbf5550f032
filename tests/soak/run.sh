#!/bin/bash
# The long form: 1,000 connections, 8 of them decoding at full rate, for 20 minutes; a release build says more than others.
#   tests/soak/run.sh BUILD [SECONDS] [CONNECTIONS] [SEED] [RESULTS]      RESULTS: tests/soak/results; .json, .csv, .svg
set -u
cd "$(dirname "$0")/../.." || exit 2
if [ $# -lt 1 ] || [ ! -x "$1/tests/soak/mlad-soak" ]; then
  echo "usage: tests/soak/run.sh BUILD [SECONDS] [CONNECTIONS] [SEED] [RESULTS]" >&2
  exit 2
fi
build=$(realpath "$1")
commit=$(git rev-parse --short=12 HEAD)
# Of what is run here.
[ -z "$(git status --porcelain -- proto client daemon kernels/plan kernels/abi tests/{soak,chaos} tests/support)" ] || commit+=-dirty
folder=${5:-tests/soak/results}
results=$folder/$(date -u +%F)-cpu
mkdir -p "$folder"
"$build/tests/soak/mlad-soak" --seconds "${2:-1200}" --connections "${3:-1000}" --seed "${4:-$RANDOM}" \
  --commit "$commit" --json "$results.json" --csv "$results.csv"
status=$?
[ ! -s "$results.csv" ] || python3 -B tests/soak/plot.py "$results" || status=1
exit "$status"
