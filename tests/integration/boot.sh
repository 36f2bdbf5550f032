#!/bin/bash
# The packages under a real systemd: boot.sh FOLDER   (root, network, mmdebstrap, systemd-container; two minutes)
# A fresh Debian 12 is booted in a container, the packages are installed in it, and mlad@0 runs with all lines of its unit but
# on the CPU backend: readiness, decode, rights of other users, reload, crash, watchdog, degraded, drain, socket activation,
# metrics over HTTP, removal.
set -euo pipefail
[ $# -eq 1 ] || { echo "usage: boot.sh FOLDER" >&2; exit 2; }
folder=$(cd "$1" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
root=$work/root
mmdebstrap --quiet --variant=apt --include=systemd,systemd-sysv,dbus,gcc,libc6-dev bookworm "$root"
cp "$folder"/*.deb "$root/tmp/"
chroot "$root" sh -c 'export DEBIAN_FRONTEND=noninteractive; apt-get -qq update
  apt-get -qq -y --no-install-recommends install /tmp/*.deb >/dev/null
  cc -o /usr/local/bin/worker /usr/share/doc/mlad/examples/worker.c -lmla -lm
  useradd -G mlad worker; useradd other'
mkdir -p "$root/etc/systemd/system/mlad@.service.d" "$root/etc/systemd/system/multi-user.target.wants"
cat >"$root/etc/systemd/system/mlad@.service.d/cpu.conf" <<'UNIT'
[Service]
ExecStart=
ExecStart=/usr/sbin/mlad --config /etc/mlad/mlad.conf --socket /run/mlad/%i.sock --set device.workspace_bytes=16M
UNIT
cat >"$root/etc/systemd/system/trial.service" <<'UNIT'
[Unit]
After=dbus.service
[Service]
Type=oneshot
ExecStart=/bin/bash /opt/trial.sh
ExecStopPost=/bin/systemctl poweroff --no-block
UNIT
ln -s ../trial.service "$root/etc/systemd/system/multi-user.target.wants/trial.service"
ln -sf /lib/systemd/system/multi-user.target "$root/etc/systemd/system/default.target"
cat >"$root/opt/trial.sh" <<'TRIAL'
exec >/opt/trial.log 2>&1
failed=0
# check NAME COMMAND...: the command must succeed
check() {
  local name=$1 said
  shift
  if said=$("$@" 2>&1); then echo "ok      $name"; else echo "FAILED  $name: $said"; failed=1; fi
}
refused() { ! "$@"; }
pid() { systemctl show -P MainPID mlad@0.service; }
is() { [ "$1" = "$2" ] || { echo "\"$1\", not \"$2\""; return 1; }; }
as() { local who=$1; shift; su "$who" -s /bin/sh -c "$*"; }
ready() { for _ in $(seq "$1"); do mlactl health >/dev/null 2>&1 && return; sleep 1; done; systemctl status mlad@0.service; return 1; }
users() { sed -i "/^\[access\]/,/^\[/ s/^users =.*/users = $1/" /etc/mlad/mlad.conf; } # [weights] has users, too
export MLAD_SOCKET=/run/mlad/0.sock
check "starts" systemctl start mlad@0.socket mlad@0.service
check "status line" grep -q "^ready, " <(systemctl show -P StatusText mlad@0.service)
check "its own user" is "$(stat -c %U "/proc/$(pid)")" mlad
check "socket's rights" is "$(stat -c '%U %G %a' $MLAD_SOCKET)" "mlad mlad 660"
check "no capabilities" grep -q "^CapBnd:.*0000000000000000$" "/proc/$(pid)/status"
check "system-call filter" grep -q "^Seccomp:.*2$" "/proc/$(pid)/status"
check "decodes" worker $MLAD_SOCKET
check "a member of the group decodes" as worker worker $MLAD_SOCKET
check "a member of the group may not drain" refused as worker MLAD_SOCKET=$MLAD_SOCKET mlactl drain
check "nobody else connects" refused as other MLAD_SOCKET=$MLAD_SOCKET mlactl health
check "journal has fields" grep -q "event=client_in.*name=mlactl" <(journalctl MLAD_EVENT=client_in MLAD_NAME=mlactl --no-pager)
check "journal has priorities" is "$(journalctl MLAD_EVENT=ready PRIORITY=5 -o cat --no-pager | wc -l)" 1
users other
check "reloads" systemctl reload mlad@0.service
check "who is not listed is out" refused as worker MLAD_SOCKET=$MLAD_SOCKET mlactl health
users no-such-user
check "a wrong file is refused" refused systemctl reload mlad@0.service
users ''
check "goes on, and reloads" systemctl reload mlad@0.service
kill -HUP "$(pid)"
kill -KILL "$(pid)"
sleep 1
check "comes back after a crash" ready 10
kill -STOP "$(pid)"
check "comes back after it hung" ready 60
check "by the watchdog" grep -q "Watchdog timeout" <(journalctl -u mlad@0.service --no-pager)
for _ in 1 2 3; do
  kill -STOP "$(pid)"
  sleep 1.4
  kill -CONT "$(pid)"
  sleep 0.1
done
sleep 1
degraded() { local code=0; mlactl health || code=$?; is $code 5; }
check "says that it is late" degraded
check "and the status line does" grep -q "^degraded: loop_lag, " <(systemctl show -P StatusText mlad@0.service)
check "drains" mlactl drain
sleep 1
check "a drained one stays away" is "$(systemctl show -P Result -P ActiveState mlad@0.service | paste -sd' ')" "success inactive"
check "a connection starts it" ready 5
printf '[Service]\nPrivateUsers=yes\n' >/etc/systemd/system/mlad@.service.d/users.conf
systemctl daemon-reload
systemctl restart mlad@0.service
check "PrivateUsers hides who clients are" grep -q " 65534 " <(as worker MLAD_SOCKET=$MLAD_SOCKET mlactl clients)
rm /etc/systemd/system/mlad@.service.d/users.conf
cp /usr/share/doc/mlad/examples/http.conf /etc/systemd/system/mlad@.service.d/
sed -i 's/^http_port =.*/http_port = 9464/' /etc/mlad/mlad.conf
systemctl daemon-reload
systemctl restart mlad@0.service
scrape() { exec 3<>/dev/tcp/127.0.0.1/9464 && printf 'GET /metrics HTTP/1.0\r\n\r\n' >&3 && grep -q "^mlad_ready 1" <&3; }
check "metrics over HTTP with the drop-in" scrape
check "is removed" apt-get -qq -y remove mlad
check "and with it what ran" is "$(systemctl is-active mlad@0.service mlad@0.socket | paste -sd' ')" "inactive inactive"
[ $failed -eq 0 ] && echo "all passed"
TRIAL
SYSTEMD_NSPAWN_UNIFIED_HIERARCHY=1 timeout 300 systemd-nspawn -q -b -D "$root" --register=no --keep-unit --console=pipe \
  >"$work/console" 2>&1 || { cat "$work/console"; exit 1; }
cat "$root/opt/trial.log"
grep -qx "all passed" "$root/opt/trial.log"
