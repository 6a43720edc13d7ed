#!/bin/bash
# hybrid.sh [CASE ..] - ring, ps-sync, hierarchical and hybrid over real sockets between network namespaces that
# stand for hosts, each with a cable of its own rate to one switch: when two ways are better than one, and when not.
#
#     sudo examples/hybrid.sh            all cases
#     sudo examples/hybrid.sh 4x1:2      4 hosts with 1 rank each, the server's cable twice as fast as theirs
#
# Environment: BUILD (build), RATE (of a host's cable: 100, in Mbit/s), STEPS (30), REPEAT (3), BUCKET (0.1, MB).
# Needs root, iproute2 with tc, python3. Removes what it has made.
set -eu
cd "$(dirname "$0")/.."
BUILD=$(realpath "${BUILD:-build}") RATE=${RATE:-100} STEPS=${STEPS:-30} REPEAT=${REPEAT:-3} BUCKET=${BUCKET:-0.1}
NAME=hybrid-$$ WORK=$(mktemp -d)
trap clean EXIT

clean() {
    for n in $(ip netns list | grep -o "^$NAME-[a-z0-9]*"); do ip netns del "$n"; done
    rm -rf "$WORK"
}

# A host at 10.79.0.NUMBER whose cable takes so many Mbit/s each way.
host() { # LABEL NUMBER MBIT
    ip netns add "$NAME-$1"
    ip -n "$NAME-$1" link set lo up
    ip link add eth0 netns "$NAME-$1" type veth peer name "v$1" netns "$NAME-sw"
    ip -n "$NAME-sw" link set "v$1" master br0 up
    ip -n "$NAME-$1" addr add "10.79.0.$2/24" dev eth0
    ip -n "$NAME-$1" link set eth0 up
    for end in "$NAME-$1 eth0" "$NAME-sw v$1"; do
        ip netns exec "${end% *}" tc qdisc add dev "${end#* }" root tbf rate "$3mbit" burst 64kb latency 200ms
    done
}

make_hosts() { # HOSTS SERVER_RATIO
    ip netns add "$NAME-sw"
    ip -n "$NAME-sw" link add br0 type bridge
    ip -n "$NAME-sw" link set br0 up
    for ((h = 0; h < $1; h++)); do host $h $((h + 1)) "$RATE"; done
    host s 100 "$((RATE * $2))"
}

drop_hosts() {
    for n in $(ip netns list | grep -o "^$NAME-[a-z0-9]*"); do ip netns del "$n"; done
}

run_once() { # STRATEGY HOSTS RANKS_A_HOST OUT
    local n=$(($2 * $3)) pids=() meet=--rendezvous=tcp://10.79.0.1:23456
    if [ "$1" != ring ]; then
        meet=--server=tcp://10.79.0.100:5555
        ip netns exec "$NAME-s" "$BUILD/psd" --strategy="$1" --world-size=$n --insecure --token-file="$WORK/token" \
            --listen=tcp://10.79.0.100:5555 >"$4.psd" 2>&1 &
        pids+=($!)
    fi
    for ((r = 0; r < n; r++)); do
        ip netns exec "$NAME-$((r / $3))" "$BUILD/worker" --strategy="$1" $meet --insecure --token-file="$WORK/token" \
            --rank=$r --world-size=$n --local-size="$3" --threads=1 --model=mlp --data=synthetic \
            --limit-train-samples=1024 --limit-test-samples=8 --batch-size=4 --steps="$STEPS" --lr=0.001 \
            --bucket-cap-mb="$BUCKET" --out="$4" >"$4.$r" 2>&1 &
        pids+=($!)
    done
    for p in "${pids[@]}"; do wait "$p" || { cat "$4".*; exit 1; }; done
}

table() { # HOSTS RANKS_A_HOST RATIO
    python3 - "$WORK" "$@" <<'PY'
import glob, json, statistics, sys
work, hosts, local, ratio = sys.argv[1:]
print(f"\n{hosts} hosts x {local} rank{'s' * (local != '1')}, the server's cable {ratio} x a host's: ms a step (least, median)")
for s in ("ring", "ps-sync", "hierarchical", "hybrid:auto"):
    ms = []
    for f in glob.glob(f"{work}/{s}.*/result.json"):
        r = json.load(open(f))
        ms.append(1e3 * r["train_seconds"] / r["steps"])
    said = ""
    for f in glob.glob(f"{work}/{s}.1.0"):
        said = "".join(l.split("hybrid: ")[1].strip() for l in open(f) if "to the server:" in l)
    if ms: print(f"  {s:14} {min(ms):7.1f} {statistics.median(ms):7.1f}   {said}")
PY
}

(umask 077; od -An -N16 -tx1 /dev/urandom | tr -d ' \n' >"$WORK/token")
for c in "${@:-2x2:4 4x1:2 2x2:1 2x1:1}"; do for case in $c; do
    hosts=${case%x*} rest=${case#*x} local=${rest%:*} ratio=${rest#*:}
    make_hosts "$hosts" "$ratio"
    for ((i = 1; i <= REPEAT; i++)); do
        for s in ring ps-sync hierarchical hybrid:auto; do run_once $s "$hosts" "$local" "$WORK/$s.$i"; done
    done
    table "$hosts" "$local" "$ratio"
    drop_hosts
    rm -rf "${WORK:?}"/*.[0-9]*
done; done
