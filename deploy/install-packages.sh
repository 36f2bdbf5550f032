#!/bin/sh
# Installs the Debian packages that the given lists name (default: deploy/packages.txt) and this machine lacks.
# Needs root or sudo only if something is missing.
#   deploy/install-packages.sh [LIST ...]
set -eu
here=$(cd "$(dirname "$0")" && pwd)
[ $# -gt 0 ] || set -- "$here/packages.txt"

missing=
# shellcheck disable=SC2013  # names have no blanks
for package in $(cat "$@" | sed 's/#.*//'); do
  case $(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null || true) in
    installed) ;;
    *) missing="$missing $package" ;;
  esac
done
if [ -z "$missing" ]; then
  echo "packages: all there"
  exit 0
fi
echo "packages: installing$missing"
sudo=
[ "$(id -u)" -eq 0 ] || sudo=sudo
$sudo env DEBIAN_FRONTEND=noninteractive apt-get -qq update </dev/null
# shellcheck disable=SC2086  # a list of names
$sudo env DEBIAN_FRONTEND=noninteractive apt-get -qq -y --no-install-recommends install $missing </dev/null
