#!/bin/sh
# Runs programs of the conformance suite on the CUDA backend and the machine's GPU: on_gpu.sh PROGRAM ...
# Exit 77 where there is no GPU, 1 when any program fails.
[ -e /dev/nvidiactl ] || exit 77
MLA_TEST_BACKEND=cuda
export MLA_TEST_BACKEND
failed=0
for program; do
    "$program" || failed=1
done
exit "$failed"
