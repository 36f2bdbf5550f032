#!/bin/bash
# The units as they are installed: units.sh FOLDER
# Fails on anything that systemd-analyze verify says, and on an exposure above 2.0. 77 where there is no systemd 250.
set -eu
[ $# -eq 1 ] || { echo "usage: units.sh FOLDER" >&2; exit 2; }
source=$1
here=$(cd "$(dirname "$0")/../.." && pwd)
version=$(systemd-analyze --version 2>/dev/null | awk 'NR == 1 { print int($2) }') || true
if [ "${version:-0}" -lt 250 ]; then
  echo "systemd-analyze of systemd 250 or later is not here"
  exit 77
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
# Programs need not be on this machine; what they are called with stays.
for unit in "$source"/mlad@.service "$here"/deploy/systemd/mlad@.socket "$here"/deploy/systemd/mlad-mps.service; do
  sed -E 's#^(Exec[A-Za-z]*=[-+]*)/[a-z/]*bin/(mlad|nvidia-[a-z-]+) #\1/bin/true #' "$unit" >"$work/$(basename "$unit")"
done
[ "$(grep -hEc '^Exec.*=[-+]*/bin/true ' "$work"/*.service | awk "{ n += \$1 } END { print n }")" -eq 3 ] || {
  echo "not the three programs that are known here"
  exit 1
}
names=(mlad-mps.service)
for instance in 0 GPU-5d2f7a1c-0000-4000-8000-0123456789ab; do
  for kind in service socket; do
    ln -s "mlad@.$kind" "$work/mlad@$instance.$kind"
    names+=("mlad@$instance.$kind")
  done
done
# The drop-in for shared mode, in one of the instances.
mkdir "$work/mlad@0.service.d"
cp "$here/deploy/systemd/mps.conf" "$work/mlad@0.service.d/"

failed=0
export SYSTEMD_UNIT_PATH=$work:
said=$(cd "$work" && systemd-analyze verify --man=no "${names[@]/#/./}" 2>&1) || failed=1
if [ -n "$said" ] || [ $failed -ne 0 ]; then
  echo "systemd-analyze verify: $said"
  failed=1
fi
for name in mlad@0.service mlad-mps.service; do
  cp -L "$work/$name" "$work/alone-$name"
  summary=$(cd "$work" && systemd-analyze security --offline=true --no-pager --threshold=20 "./alone-$name" 2>&1) ||
    { echo "$summary"; failed=1; }
  echo "$summary" | sed -n "s/.*Overall exposure level.*: \([0-9.]*\).*/$name: exposure \1/p"
done
said=$(systemd-sysusers --dry-run "$here/deploy/systemd/mlad.sysusers" 2>&1) || { echo "systemd-sysusers: $said"; failed=1; }
exit $failed
