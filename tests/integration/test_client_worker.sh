#!/bin/sh
# An example worker against a real daemon: exit 0 says that every output was right.
# Usage: test_client_worker.sh MLAD WORKER [BACKEND [ARGUMENT]]
set -eu
work=$(mktemp -d)
"$1" --socket "$work/mlad.sock" --backend "${3:-cpu}" --log-level warning --set device.workspace_bytes=16M &
daemon=$!
trap 'kill $daemon 2>/dev/null || true; rm -rf "$work"' EXIT
"$2" "$work/mlad.sock" ${4:+"$4"}
kill -TERM $daemon
wait $daemon
