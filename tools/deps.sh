#!/bin/sh
# deps.sh [--check-build] PACKAGE...: installs the Debian packages that are missing, printing the line first.
# With neither root nor sudo it prints the line for an administrator and fails. --check-build only checks.
check=0
[ "$1" = --check-build ] && { check=1; shift; }
command -v dpkg-query >/dev/null || exit 0 # not Debian: CMake will say what it misses
missing=
for package; do
    dpkg-query -W -f='${Status}' "$package" 2>/dev/null | grep -q 'ok installed' || missing="$missing $package"
done
line="apt-get install -y --no-install-recommends$missing"
if [ -z "$missing" ]; then
    [ $check = 1 ] || echo "All packages are installed."
    exit 0
fi
if [ $check = 1 ]; then
    echo "Missing:$missing. Install with: make deps" >&2
    exit 1
fi
if [ "$(id -u)" = 0 ]; then
    as=
elif command -v sudo >/dev/null; then
    as="sudo "
else
    echo "Entrain needs packages that only an administrator can install. Please hand over this line:" >&2
    echo "  apt-get update && $line" >&2
    exit 1
fi
echo "${as}apt-get update && $as$line"
export DEBIAN_FRONTEND=noninteractive
${as}apt-get update -qq && ${as}$line -qq >/dev/null
