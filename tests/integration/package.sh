#!/bin/bash
# The Debian packages of a folder: package.sh FOLDER [--root]
#   lintian finds no error; kernels are those that users need; unpacked, daemon, tool, library and headers work together:
#   a worker built from the packages decodes. With --root they are installed in a fresh Debian root (mmdebstrap, network,
#   root), started, used, reloaded, removed and purged there.
set -euo pipefail
[ $# -ge 1 ] || { echo "usage: package.sh FOLDER [--root]" >&2; exit 2; }
folder=$(cd "$1" && pwd)
version=$(dpkg-deb -f "$folder"/mlad_*.deb Version)
debs=()
for name in mlad mlad-tools libmla0 libmla-dev; do
  debs+=("$folder/${name}_${version}_$(dpkg --print-architecture).deb")
done
work=$(mktemp -d)
daemon=
finish() {
  [ -z "$daemon" ] || kill "$daemon" 2>/dev/null || true
  rm -rf "$work"
}
trap finish EXIT

# Starts mlad in the root, or unpacked, decodes, reloads, ends it; all by the packages' own files.
use() { # prefix of commands, folder of the programs, worker, socket
  local run=$1 at=$2 worker=$3 socket=$4
  $run "$at/usr/sbin/mlad" --config "$at/etc/mlad/mlad.conf" --socket "$socket" --log-level warning \
    --set device.workspace_bytes=16M &
  daemon=$!
  for _ in $(seq 100); do
    $run "$at/usr/bin/mlactl" --socket "$socket" health >/dev/null 2>&1 && break
    sleep 0.1
  done
  $run "$at/usr/bin/mlactl" --socket "$socket" health
  $run env LD_LIBRARY_PATH="$libraries" "$worker" "$socket"
  $run "$at/usr/bin/mlactl" --socket "$socket" reload
  $run "$at/usr/bin/mlactl" --socket "$socket" drain
  wait "$daemon"
  daemon=
}

# Kernel files and the sections that name them: all there, nothing that is for measuring alone. Without CUDA none.
kernels() { # root
  local ini beside named few
  ini=$(find "$1/usr/lib" -path '*/mlad/kernels/kernels.ini')
  [ -n "$ini" ] || { echo "no kernels: built without CUDA"; return 0; }
  beside=$(find "$(dirname "$ini")" -type f ! -name kernels.ini -printf '%f\n' | sort)
  named=$(sed -n 's/^[a-z]*_file = //p' "$ini" | sort -u)
  [ "$named" = "$beside" ] || { echo "kernels.ini names $named; beside it: $beside"; return 1; }
  few=$(sed -n 's/^few_rows = //p' "$ini" | sort -u)
  named=$(sed -n -e '/^\[/h' -e '/^by_name_only = 1/{g;s/[][]//gp}' "$ini" | sort -u)
  [ "$named" = "$few" ] || { echo "sections by name only: $named; few_rows of others: $few"; return 1; }
}

unpacked() {
  local deb root=$work/unpacked
  for deb in "${debs[@]}"; do
    dpkg-deb -x "$deb" "$root"
  done
  kernels "$root"
  dpkg-deb --ctrl-tarfile "$folder"/mlad_"$version"_*.deb | tar -xO ./conffiles | grep -qx /etc/mlad/mlad.conf
  libraries=$(dirname "$(ls "$root"/usr/lib/*/libmla.so)")
  "${CC:-cc}" -I "$root/usr/include" -o "$work/worker" "$root/usr/share/doc/mlad/examples/worker.c" \
    -L "$libraries" -lmla -lm
  use "" "$root" "$work/worker" "$work/socket"
  for page in mlad.8 mlad.conf.5 mlactl.1 libmla.3; do
    zcat "$root/usr/share/man/man${page##*.}/$page.gz" >"$work/$page"
    if command -v groff >/dev/null; then
      said=$(groff -man -Tutf8 -ww -z "$work/$page" 2>&1)
      [ -z "$said" ] || { echo "$page: $said"; return 1; }
    fi
  done
}

in_root() {
  local root=$work/root
  mmdebstrap --quiet --variant=apt bookworm "$root"
  cp "${debs[@]}" "$root/tmp/"
  chroot "$root" apt-get -qq update
  chroot "$root" sh -c 'DEBIAN_FRONTEND=noninteractive apt-get -qq -y --no-install-recommends install gcc libc6-dev /tmp/*.deb'
  chroot "$root" getent passwd mlad
  chroot "$root" sh -c 'cc -o /tmp/worker /usr/share/doc/mlad/examples/worker.c -lmla -lm'
  libraries=
  chroot "$root" install -d -o mlad -g mlad /run/mlad
  mount -t proc proc "$root/proc"
  use "chroot --userspec=mlad:mlad $root" "" /tmp/worker /run/mlad/mlad.sock || { umount "$root/proc"; return 1; }
  umount "$root/proc"
  chroot "$root" systemctl enable mlad@0.socket mlad@0.service
  chroot "$root" apt-get -qq -y remove mlad mlad-tools libmla0 libmla-dev
  [ -e "$root/etc/mlad/mlad.conf" ] || { echo "removing took the configuration"; return 1; }
  chroot "$root" apt-get -qq -y purge mlad
  local left
  left=$(chroot "$root" find /etc/mlad /usr /var/lib /lib -name '*mlad*' -o -name 'libmla*' | grep -v -e '/dpkg/' -e '/systemd/' || true)
  [ -z "$left" ] || { echo "left behind: $left"; return 1; }
  echo "installed, started, decoded, reloaded, drained, removed and purged in a fresh root"
}

if command -v lintian >/dev/null; then
  lintian --allow-root --fail-on error "${debs[@]}"
else
  echo "lintian is not here"
  exit 77
fi
unpacked
[ "${2:-}" != --root ] || in_root
