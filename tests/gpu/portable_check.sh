#!/bin/sh
# The folder of a portable build needs nothing but glibc, and stays small: portable_check.sh DIR. Exit 0 when that holds.
set -eu
cd "$1"
failed=0
for program in *; do
    if [ ! -f "$program" ] || [ ! -x "$program" ]; then continue; fi
    case $(od -An -N4 -c "$program" | tr -d ' ') in
        *ELF) ;;
        *) continue ;;
    esac
    needed=$(LC_ALL=C readelf -d "$program" | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p')
    for library in $needed; do
        case $library in
            libc.so.6 | libm.so.6 | libdl.so.2 | libpthread.so.0 | librt.so.1 | ld-linux-x86-64.so.2) ;;
            *)
                echo "$program needs $library"
                failed=1
                ;;
        esac
    done
done
for file in mlad mlactl mlad-tests gpu_kernels mla-bench kernels/kernels.ini commit; do
    [ -s "$file" ] || { echo "$file is not there"; failed=1; }
done
kib=$(du -sk . | cut -f1)
echo "$kib KiB"
[ "$kib" -le 40960 ] || { echo "more than 40 MiB"; failed=1; }
exit "$failed"
