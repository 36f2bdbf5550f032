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
# The declared functions are those that MLA_API marks.
tr '\n' ' ' <"$prefix/include/mla/mla.h" | grep -o 'MLA_API [^;]*;' |
    sed 's/(.*//; s/.*[ *]//' | grep '^mla_' | sort -u >"$work/declared"
nm -D --defined-only "$libdir/libmla.so.0" | awk '$2 == "T" {sub(/@.*/, "", $3); print $3}' | sort >"$work/shared"
nm -g --defined-only "$libdir/libmla.a" | awk 'NF == 3 {print $3}' | sort >"$work/static"
test "$(wc -l <"$work/declared")" -ge 40
diff "$work/declared" "$work/shared"
diff "$work/declared" "$work/static"
objdump -p "$libdir/libmla.so.0" | grep -q 'SONAME *libmla.so.0$'

cp "$source/consumer.c" "$work/consumer.c"
cp "$source/consumer.c" "$work/consumer.cc"
cp "$source/CMakeLists.txt" "$work/CMakeLists.txt"
strict="-Wall -Wextra -Werror -pedantic"

run() {
    echo "== $1"
    shift
    "$@" | tee "$work/out"
    grep -q '^libmla 0\.1\.0: DISCONNECTED: no daemon listens at /nonexistent/mlad.sock$' "$work/out"
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

"$cmake" -S "$work" -B "$work/build" -DCMAKE_PREFIX_PATH="$prefix" -DCMAKE_C_COMPILER="$cc" -DCMAKE_CXX_COMPILER="$cxx" \
    -DCMAKE_C_FLAGS="$strict" -DCMAKE_CXX_FLAGS="$strict" >"$work/configure.log"
"$cmake" --build "$work/build" >"$work/build.log" || {
    cat "$work/build.log" >&2
    exit 1
}
for program in consumer_c_mla consumer_c_mla_static consumer_cc_mla consumer_cc_mla_static; do
    run "find_package, $program" "$work/build/$program"
done
