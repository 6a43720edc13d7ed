#!/bin/sh
# root.sh SUITE[+arm64|+python] COMMAND..: runs COMMAND on this tree in a bare Debian of SUITE (bookworm, trixie) with the packages
# of `make deps`:
#
#     tools/root.sh trixie make BUILD=/build test
#     tools/root.sh bookworm+arm64 make BUILD=/build ARCH=arm64 test
#
# With +arm64 it has this machine's programs and also arm64's libraries, and qemu is registered with binfmt_misc: programs
# compiled for arm64 are emulated, but compilers and shells are native. With +python it has python3-venv instead of the packages
# of `make deps`.
#
# mmdebstrap makes it, from apt's mirror. It is kept in ${XDG_CACHE_HOME:-~/.cache}/entrain-roots/SUITE.., with /build for as
# long as the tree is the same; SUITE...tar has its initial state. COMMAND sees the tree as /entrain, read-only; its processes end
# with it, or after ROOT_SECONDS (5400). Exit 77, with one sentence, if the root cannot be made; else the exit of COMMAND.
name=$1 suite=${1%+*} arch= has=make prepare="make -s deps"
[ $# -ge 2 ] || { echo "root.sh SUITE[+arm64|+python] COMMAND..: SUITE is bullseye, bookworm or trixie" >&2; exit 2; }
case $name in
*+arm64) arch=arm64 prepare="$prepare ARCH=arm64" ;;
*+python) has=python3-venv prepare=true ;;
esac
shift
tree=$(cd "$(dirname "$0")/.." && pwd) || exit 2
root=${XDG_CACHE_HOME:-$HOME/.cache}/entrain-roots/$name
skip() { echo "SKIP: no root of $name: $*"; exit 77; }

[ "$(id -u)" = 0 ] || skip "making and entering one needs root"
unshare --mount --pid --fork true 2>/dev/null || skip "this machine does not allow namespaces for mounts and processes"
if [ -n "$arch" ]; then # the kernel opens qemu at registration (flag F), so that no root needs it
    formats=/proc/sys/fs/binfmt_misc known=/usr/lib/binfmt.d/qemu-aarch64.conf
    [ -e $formats/register ] || mount -t binfmt_misc binfmt_misc $formats 2>/dev/null || skip "binfmt_misc may not be mounted here"
    [ -e $formats/qemu-aarch64 ] || [ -e $known ] || skip "qemu is missing (apt-get install qemu-user-static)"
    [ -e $formats/qemu-aarch64 ] || cat $known > $formats/register || skip "binfmt_misc does not accept a format here"
fi
mkdir -p "$root" && exec 9> "$root.lock" || exit 1
flock -w 3600 9 || skip "$root.lock is held by another run"

if [ ! -e "$root/whole" ] || [ ! -e "$root.tar" ]; then
    command -v mmdebstrap >/dev/null || skip "mmdebstrap is missing (apt-get install mmdebstrap)"
    here=$(. /etc/os-release && echo "$VERSION_CODENAME")
    mirror=$(apt-get indextargets --no-release-info --format '$(RELEASE) $(COMPONENT) $(REPO_URI)' 'Created-By: Packages' |
        awk -v here="$here" '($1 == here || $1 == "stable") && $2 == "main" { print $3; exit }')
    [ -n "$mirror" ] || skip "apt has no mirror of $here"
    rm -rf "$root" "$root.tar" && mkdir -p "$root" || exit 1
    apt-config dump | grep -E '^Acquire::(https?::|Check-)' > "$root.apt" # such as proxies
    timeout 900 mmdebstrap --mode=root --variant=minbase --include=$has --aptopt="$root.apt" \
        --architectures="$(dpkg --print-architecture)${arch:+,$arch}" "$suite" "$root.new.tar" \
        "deb $mirror $suite main" > "$root.log" 2>&1 9>&- || skip "mmdebstrap failed: $(grep '^E:' "$root.log" | head -n 1)"
    tar -C "$root" --numeric-owner -xpf "$root.new.tar" && mkdir -p "$root/entrain" && touch "$root/whole" &&
        mv "$root.new.tar" "$root.tar" || exit 1
fi
if [ "$(cat "$root/tree" 2>/dev/null)" != "$tree" ]; then # another tree's objects may be newer than the sources of this one
    rm -rf "$root/build" && mkdir "$root/build" && echo "$tree" > "$root/tree" || exit 1
fi

# The first process of a PID namespace: when it ends, so do the others.
inside='
root=$1 tree=$2 prepare=$3; shift 3
mount --bind "$tree" "$root/entrain" && mount -o remount,bind,ro "$root/entrain" &&
    mount -t proc proc "$root/proc" && mount --rbind /dev "$root/dev" && mount --rbind /sys "$root/sys" &&
    mount -t tmpfs -o mode=1777 tmpfs "$root/dev/shm" && mount -t tmpfs -o mode=1777 tmpfs "$root/tmp" || exit 1
cat /etc/resolv.conf > "$root/etc/resolv.conf"
exec env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LC_ALL=C.UTF-8 chroot "$root" \
    sh -c "cd /entrain && $prepare >/dev/null && \"\$@\"" sh "$@"'
exec timeout -k 10 "${ROOT_SECONDS:-5400}" unshare --mount --pid --fork --kill-child sh -c "$inside" sh "$root" "$tree" "$prepare" "$@"
