#!/bin/sh
# usage: test_sched_alloc.sh NM ARCHIVE
# The scheduler neither allocates nor does I/O nor reads a clock: its archive may need nothing but itself, memory
# functions, assert() and what compilers add.
set -eu
nm=$1
archive=$2
defined=$("$nm" --defined-only "$archive" | awk 'NF == 3 && $2 ~ /[TDBR]/ { print $3 }')
case $defined in
*sched_step*) ;;
*) echo "no sched_step in $archive: nothing was looked at" && exit 1 ;;
esac
bad=$("$nm" -u "$archive" | awk 'NF == 2 { print $2 }' | sort -u | grep -vxE \
    'sched_[a-z_]*|mem(set|cpy|move)|__mem(set|cpy|move)_chk|__assert_fail|__stack_chk_fail|_GLOBAL_OFFSET_TABLE_|__(asan|ubsan|tsan|sanitizer)_.*' || true)
if [ -n "$bad" ]; then
    echo "the scheduler needs: $bad"
    exit 1
fi
