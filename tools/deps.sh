#!/bin/sh
# deps.sh [--check-build] PACKAGE[/OLDER NAME]..: installs the missing Debian packages, printing each command first; of two
# names, the first that this release has. Without root or sudo it prints the command for an administrator and fails.
# --check-build only checks.
check=0
[ "$1" = --check-build ] && { check=1; shift; }
if ! command -v dpkg-query >/dev/null; then # not Debian, not Ubuntu: CMake reports missing packages
    [ $check = 1 ] || echo "Only Debian packages can be installed automatically. On Fedora (untested) the command would be:" \
        "dnf install gcc gcc-c++ cmake pkgconf gnuplot-minimal onednn-devel" \
        "'pkgconfig('{libzmq,libcrypto,libisal,zlib,yaml-0.1,jansson,libcurl,expat,msgpack-c,cmocka}')'"
    exit 0
fi
is_installed() { dpkg-query -W -f='${Status}' "$1" 2>/dev/null | grep -q 'ok installed'; }
missing=
for package; do
    is_installed "${package%/*}" || is_installed "${package#*/}" || missing="$missing $package"
done
if [ -z "$missing" ]; then
    [ $check = 1 ] || echo "All packages are installed."
    exit 0
fi
if [ $check = 1 ]; then
    echo "Missing:$missing. Install with: make deps" >&2
    exit 1
fi
line() {
    printf 'apt-get install -y --no-install-recommends'
    for package in $missing; do
        if apt-cache show "${package%/*}" >/dev/null 2>&1; then printf ' %s' "${package%/*}"; else printf ' %s' "${package#*/}"; fi
    done
}
if [ "$(id -u)" = 0 ]; then
    as=
elif command -v sudo >/dev/null; then
    as="sudo "
else
    echo "Entrain needs packages that only an administrator can install, by this command:" >&2
    echo "  apt-get update && $(line)" >&2
    exit 1
fi
export DEBIAN_FRONTEND=noninteractive
echo "${as}apt-get update"
${as}apt-get update -qq || exit
line=$as$(line)
echo "$line"
$line -qq >/dev/null
