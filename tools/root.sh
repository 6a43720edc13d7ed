#!/bin/sh
# root.sh SUITE COMMAND..: runs COMMAND on this tree in a bare Debian of SUITE (bookworm, trixie) with what `make deps` names
# there: root.sh trixie make BUILD=/build test. The root is made by mmdebstrap from the mirror that apt has here, kept in
# ${XDG_CACHE_HOME:-~/.cache}/entrain-roots/SUITE, and its /build with it. The tree is seen in /entrain, and read only; what the command started ends with it,
# or after ROOT_SECONDS (5400). Exit 77, with one sentence, where no such root can be made; else the exit of COMMAND.
suite=$1
[ $# -ge 2 ] || { echo "root.sh SUITE COMMAND..: SUITE is bookworm or trixie" >&2; exit 2; }
shift
tree=$(cd "$(dirname "$0")/.." && pwd) || exit 2
root=${XDG_CACHE_HOME:-$HOME/.cache}/entrain-roots/$suite
skip() { echo "SKIP: no root of $suite: $*"; exit 77; }

[ "$(id -u)" = 0 ] || skip "only root may make and enter one"
unshare --mount --pid --fork true 2>/dev/null || skip "this machine gives no mount and pid namespaces"
mkdir -p "$root" && exec 9> "$root.lock" && flock -w 3600 9 || skip "$root.lock is held by another run"

if [ ! -e "$root/made" ]; then
    command -v mmdebstrap >/dev/null || skip "mmdebstrap is not installed (apt-get install mmdebstrap)"
    here=$(. /etc/os-release && echo "$VERSION_CODENAME")
    mirror=$(apt-get indextargets --format '$(RELEASE) $(COMPONENT) $(REPO_URI)' 'Created-By: Packages' |
        awk -v here="$here" '($1 == here || $1 == "stable") && $2 == "main" { print $3; exit }')
    [ -n "$mirror" ] || skip "apt names no mirror of $here here"
    rm -rf "$root" && mkdir -p "$root" || exit 1
    apt-config dump | grep -E '^Acquire::(https?::|Check-)' > "$root.apt" # proxies and the like
    timeout 900 mmdebstrap --mode=root --variant=minbase --include=make --aptopt="$root.apt" "$suite" "$root" \
        "deb $mirror $suite main" > "$root.log" 2>&1 9>&- || skip "mmdebstrap failed: $(grep -E '^[EW]:' "$root.log" | head -1)"
    mkdir -p "$root/entrain" "$root/build" && touch "$root/made"
fi

# Inside: PID 1, whose end ends all others.
inside='
root=$1 tree=$2; shift 2
mount --bind "$tree" "$root/entrain" && mount -o remount,bind,ro "$root/entrain" &&
    mount -t proc proc "$root/proc" && mount --rbind /dev "$root/dev" && mount --rbind /sys "$root/sys" &&
    mount -t tmpfs -o mode=1777 tmpfs "$root/dev/shm" && mount -t tmpfs -o mode=1777 tmpfs "$root/tmp" || exit 1
cat /etc/resolv.conf > "$root/etc/resolv.conf" # as it is today
exec env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LC_ALL=C.UTF-8 chroot "$root" \
    sh -c "cd /entrain && make -s deps >/dev/null && \"\$@\"" sh "$@"'
exec timeout -k 10 "${ROOT_SECONDS:-5400}" unshare --mount --pid --fork --kill-child sh -c "$inside" sh "$root" "$tree" "$@" 9>&-
