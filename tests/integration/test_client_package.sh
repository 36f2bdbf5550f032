#!/bin/sh
# Installs libmla into an empty prefix and builds and runs a consumer against it, in C and C++, by pkg-config and by
# find_package(), shared and static; and looks at what the two libraries export.
# Usage: test_client_package.sh CMAKE BUILD_DIR SOURCE_DIR CC CXX
set -eu
cmake=$1 build=$2 source=$3 cc=$4 cxx=$5
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
prefix=$work/prefix

for component in library development; do
    "$cmake" --install "$build" --prefix "$prefix" --component $component >"$work/install.log"
done
pc=$(find "$prefix" -name mla.pc)
libdir=$(dirname "$(dirname "$pc")")
export PKG_CONFIG_PATH="${pc%/*}"

echo "== exports"
# The declared functions are those that MLA_API marks. HEADER LIBRARY LEAST
exports() {
    tr '\n' ' ' <"$prefix/include/mla/$1" | grep -o 'MLA_API [^;]*;' |
        sed 's/(.*//; s/.*[ *]//' | grep '^mla_' | sort -u >"$work/declared"
    nm -D --defined-only "$libdir/$2.so.0" | awk '$2 == "T" {sub(/@.*/, "", $3); print $3}' | sort >"$work/shared"
    nm -g --defined-only "$libdir/$2.a" | awk 'NF == 3 {print $3}' | sort >"$work/static"
    test "$(wc -l <"$work/declared")" -ge "$3"
    diff "$work/declared" "$work/shared"
    diff "$work/declared" "$work/static"
    objdump -p "$libdir/$2.so.0" | grep -q "SONAME *$2.so.0\$"
}
exports mla.h libmla 40
cuda=
if [ -e "$prefix/include/mla/cuda.h" ]; then
    cuda=yes
    exports cuda.h libmla-cuda 8
fi

for name in consumer consumer_cuda; do
    cp "$source/$name.c" "$work/$name.c"
    cp "$source/$name.c" "$work/$name.cc"
done
cp "$source/CMakeLists.txt" "$work/CMakeLists.txt"
strict="-Wall -Wextra -Werror -pedantic"

said='^libmla 0\.1\.0: DISCONNECTED: no daemon listens at /nonexistent/mlad.sock$'
run() {
    echo "== $1"
    shift
    "$@" | tee "$work/out"
    grep -q "$said" "$work/out"
}

# Word splitting of the flags is meant.
# shellcheck disable=SC2046,SC2086
{
    $cc -std=c11 $strict "$work/consumer.c" -o "$work/pc_c" $(pkg-config --cflags --libs mla)
    $cxx -std=c++17 $strict "$work/consumer.cc" -o "$work/pc_cc" $(pkg-config --cflags --libs mla)
    $cc -std=c11 $strict "$work/consumer.c" -o "$work/pc_static" $(pkg-config --cflags mla) "$libdir/libmla.a" \
        $(pkg-config --libs libprotobuf-c)
}
run "pkg-config, C" env LD_LIBRARY_PATH="$libdir" "$work/pc_c"
run "pkg-config, C++" env LD_LIBRARY_PATH="$libdir" "$work/pc_cc"
run "pkg-config, C, static" "$work/pc_static"
if ldd "$work/pc_static" | grep libmla; then
    echo "the static consumer needs libmla.so" >&2
    exit 1
fi
if [ "$cuda" ]; then
    said='^libmla-cuda on libmla 0\.1\.0: words$'
    # shellcheck disable=SC2046,SC2086
    $cc -std=c11 $strict "$work/consumer_cuda.c" -o "$work/pc_cuda" $(pkg-config --cflags --libs mla-cuda)
    run "pkg-config, libmla-cuda" env LD_LIBRARY_PATH="$libdir" "$work/pc_cuda"
    if ldd "$work/pc_cuda" | grep -E 'libcuda|libcudart'; then
        echo "libmla-cuda links CUDA" >&2
        exit 1
    fi
fi

"$cmake" -S "$work" -B "$work/build" -DCMAKE_PREFIX_PATH="$prefix" -DCMAKE_C_COMPILER="$cc" -DCMAKE_CXX_COMPILER="$cxx" \
    -DCMAKE_C_FLAGS="$strict" -DCMAKE_CXX_FLAGS="$strict" >"$work/configure.log"
"$cmake" --build "$work/build" >"$work/build.log" || {
    cat "$work/build.log" >&2
    exit 1
}
if [ "$cuda" ]; then
    for program in consumer_c_cuda consumer_c_cuda_static consumer_cc_cuda consumer_cc_cuda_static; do
        run "find_package, $program" "$work/build/$program"
    done
fi
said='^libmla 0'
for program in consumer_c_mla consumer_c_mla_static consumer_cc_mla consumer_cc_mla_static; do
    run "find_package, $program" "$work/build/$program"
done
