#!/bin/sh
# image.sh: builds the image of ./Dockerfile with buildah and tries what README promises of it, as uid 1000, on a root that
# nobody can write, with 64 MiB of /dev/shm. In place of the registry's debian:13 it takes the bare Debian of tools/root.sh.
# Exit 77, with one sentence, where it cannot be tried; 0 or 1 else.
# Promise: The container runs README's commands as uid 1000 on a read-only root with 64 MiB of /dev/shm; SIGTERM ends
# it with 143 and a checkpoint. Two containers share memory in one network namespace, and say why in two.
tree=$(cd "$(dirname "$0")/.." && pwd) || exit 2
skip() { echo "SKIP: no image: $*"; exit 77; }
fail() { echo "image: $*" >&2; [ ! -f "$work/log" ] || tail -n 20 "$work/log" >&2; exit 1; }

[ "$(id -u)" = 0 ] || skip "only the administrator may build one here"
command -v buildah >/dev/null || skip "there is no buildah (apt-get install buildah)"
unshare --mount --pid --net --fork true 2>/dev/null || skip "this machine gives no namespaces"
work=$(mktemp -d) || exit 1
export STORAGE_DRIVER="${STORAGE_DRIVER:-overlay}" BUILDAH_ISOLATION=chroot
roots=${XDG_CACHE_HOME:-$HOME/.cache}/entrain-roots
images() { timeout 1800 buildah --root "$roots/images" --runroot "$work/images" "$@"; } # nobody else's debian:13 is replaced
name=entrain-$$
cleanup() {
    images rm "$name-base" "$name" >/dev/null 2>&1
    rm -rf "$work"
}
trap cleanup EXIT
trap 'exit 1' INT TERM

# ---- the image ----
"$tree/tools/root.sh" trixie true || exit $?
if ! images inspect --type image docker.io/library/debian:13 >/dev/null 2>&1; then
    images from --name "$name-base" scratch >"$work/log" 2>&1 && images add -q "$name-base" "$roots/trixie.tar" / >>"$work/log" 2>&1 &&
        images config --env PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin "$name-base" &&
        images commit -q "$name-base" docker.io/library/debian:13 >>"$work/log" 2>&1 || fail "the bare Debian is no image"
fi
images bud --pull-never --layers -t entrain "$tree" >"$work/log" 2>&1 || fail "the Dockerfile does not build"
images from --pull-never --name "$name" entrain >"$work/log" 2>&1 && root=$(images mount "$name") || fail "the image does not start"

# ---- what runs in it: inside NETWORK COMMAND.. ----
cat > "$work/enter" <<'END'
root=$1 runs=$2; shift 2
mount --bind "$root" "$root" && mount -o remount,bind,ro "$root" && mount -t proc proc "$root/proc" &&
    mount --rbind /dev "$root/dev" && mount -t tmpfs -o mode=1777,size=64m tmpfs "$root/dev/shm" &&
    mount -t tmpfs -o mode=1777 tmpfs "$root/tmp" && mount --bind "$runs" "$root/runs" || exit 125
exec chroot --userspec=1000:1000 "$root" env -i PATH=/usr/local/bin:/usr/bin:/bin HOME=/runs sh -c 'cd /runs && exec "$@"' sh "$@"
END
mkdir "$work/runs" && chmod 755 "$work" && chown 1000:1000 "$work/runs"
inside() { timeout 120 unshare --mount --pid --fork --kill-child sh "$work/enter" "$root" "$work/runs" "$@"; }
SMALL="--limit-train-samples=2000 --limit-test-samples=500"

inside entrain run -n 2 --strategy=ring $SMALL --out=ring >"$work/log" 2>&1 || fail "ring ended with $?"
inside entrain run -n 2 --strategy=ps-async $SMALL --out=ps >"$work/log" 2>&1 || fail "ps-async ended with $?"
inside entrain compare -n 2 --arm=ring --arm=ps-sync $SMALL --out=study >"$work/log" 2>&1 || fail "compare ended with $?"
[ -s "$work/runs/study/report.html" ] || fail "compare wrote no report"
! inside sh -c 'touch /usr/local/bin/x' 2>/dev/null || fail "the root can be written"

# Two containers share memory in one network namespace; in two they talk over TCP, and say why.
cat > "$work/pair" <<'END'
# NAME ENTER: a rank in each of two containers; HOSTS: in network namespaces of their own
name=$1 enter=$2
rank() {
    ${HOSTS:+ip netns exec "$HOSTS-$1"} timeout 120 unshare --mount --pid --fork --kill-child $enter entrain worker --strategy=ring \
        --world-size=2 --rank=$1 --rendezvous=file:///runs/meet-$name --insecure --threads=1 --limit-train-samples=2000 \
        --limit-test-samples=500 --out=$name >"$WORK/$name-$1" 2>&1
}
rank 0 &
rank 1 || exit 1
wait $!
END
transport() { grep -o '"transport": *"[a-z]*"' "$work/runs/$1/result.json"; }
WORK=$work sh "$work/pair" together "sh $work/enter $root $work/runs" || fail "two containers: $(tail -n 3 "$work"/together-?)"
transport together | grep -q shm || fail "two containers in one network namespace: $(transport together)"
if command -v ip >/dev/null; then
    WORK=$work "$tree/bench/namespaces.sh" 2 sh "$work/pair" apart "sh $work/enter $root $work/runs" ||
        fail "two containers with a network each: $(tail -n 3 "$work"/apart-?)"
    transport apart | grep -q tcp || fail "two containers with a network each: $(transport apart)"
    grep -q 'in another network namespace' "$work/apart-1" || fail "nobody says why two containers share no memory"
fi

# SIGTERM, as `docker stop` sends it: a checkpoint, and 143.
inside entrain run -n 2 --strategy=ring --epochs=1000 --limit-test-samples=500 --checkpoint-every=1000000 --out=ended-$$ \
    --log-every=1 >"$work/log" 2>&1 &
for _ in $(seq 600); do
    ! grep -q 'Train Epoch' "$work/log" || break
    sleep 0.1
done
pkill -TERM -f "^entrain run .* --out=ended-$$ "
wait $!
code=$?
[ $code = 143 ] || fail "SIGTERM ended it with $code"
[ -n "$(find "$work/runs/ended-$$" -name 'checkpoint-*.safetensors')" ] || fail "SIGTERM left no checkpoint"
echo "PROMISE the image, uid 1000 on a read-only root with 64 MiB of /dev/shm: ring, ps-async, compare and its report; SIGTERM: 143 and a checkpoint; two containers share memory in one network namespace, and say why in two"
