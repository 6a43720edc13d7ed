#!/bin/bash
# hybrid.sh [CASE ..] - ring, ps-sync, hierarchical and hybrid over real sockets between network namespaces that
# stand for hosts, each with a cable of its own rate to one switch: when two ways are better than one, and when not.
#
#     sudo examples/hybrid.sh            all cases
#     sudo examples/hybrid.sh 4x1:2      4 hosts with 1 rank each, the server's cable twice as fast as theirs
#     sudo examples/hybrid.sh 4x1:4+     every host has a second cable, which leads to the server
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

# What one run's connections have met is nothing to the next one's.
forget() { # LABEL
    ip netns exec "$NAME-$1" sh -c 'echo 1 >/proc/sys/net/ipv4/tcp_no_metrics_save'
}

# A cable from a host to the switch that takes so many Mbit/s each way.
cable() { # LABEL DEVICE ADDRESS MBIT BRIDGE
    local port="$2-$1"
    ip link add "$2" netns "$NAME-$1" type veth peer name "$port" netns "$NAME-sw"
    ip -n "$NAME-sw" link set dev "$port" master "$5" up
    ip -n "$NAME-$1" addr add "$3/24" dev "$2"
    ip -n "$NAME-$1" link set dev "$2" up
    for end in "$NAME-$1 $2" "$NAME-sw $port"; do
        ip netns exec "${end% *}" tc qdisc add dev "${end#* }" root tbf rate "$4mbit" burst 16kb latency 200ms
    done
}

# Hosts at 10.79.0.1, .2, ..; with a second cable each, to another switch, the server is there, at 10.80.0.100, and
# their address stays the first cable's: so ranks reach each other by the first, and the server by the second.
make_hosts() { # HOSTS SERVER_RATIO CABLES
    ip netns add "$NAME-sw"
    for b in br1 br2; do
        ip -n "$NAME-sw" link add $b type bridge
        ip -n "$NAME-sw" link set dev $b up
    done
    ip netns add "$NAME-s"
    ip -n "$NAME-s" link set dev lo up
    forget s
    cable s eth0 "10.$((78 + $3)).0.100" "$((RATE * $2))" "br$3"
    for ((h = 0; h < $1; h++)); do
        ip netns add "$NAME-$h"
        ip -n "$NAME-$h" link set dev lo up
        forget $h
        cable $h eth0 "10.79.0.$((h + 1))" "$RATE" br1
        [ "$3" = 2 ] || continue
        cable $h eth1 "10.80.0.$((h + 1))" "$RATE" br2
        ip -n "$NAME-$h" route add 10.80.0.100/32 dev eth1 src "10.79.0.$((h + 1))"
        ip -n "$NAME-s" route add "10.79.0.$((h + 1))/32" via "10.80.0.$((h + 1))"
        for n in "$h" s; do
            ip netns exec "$NAME-$n" sh -c 'for f in /proc/sys/net/ipv4/conf/*/rp_filter; do echo 0 >$f; done'
        done
    done
}

drop_hosts() {
    for n in $(ip netns list | grep -o "^$NAME-[a-z0-9]*"); do ip netns del "$n"; done
}

run_once() { # STRATEGY HOSTS RANKS_A_HOST CABLES OUT
    local n=$(($2 * $3)) pids=() meet=--rendezvous=tcp://10.79.0.1:23456
    if [ "$1" != ring ]; then
        meet=--server=tcp://10.$((78 + $4)).0.100:5555
        ip netns exec "$NAME-s" "$BUILD/psd" --strategy="$1" --world-size=$n --insecure --token-file="$WORK/token" \
            --listen="${meet#*=}" >"$5.psd" 2>&1 &
        pids+=($!)
    fi
    for ((r = 0; r < n; r++)); do
        ip netns exec "$NAME-$((r / $3))" "$BUILD/worker" --strategy="$1" $meet --insecure --token-file="$WORK/token" \
            --rank=$r --world-size=$n --local-size="$3" --threads=1 --model=mlp --data=synthetic \
            --limit-train-samples=1024 --limit-test-samples=8 --batch-size=4 --steps="$STEPS" --lr=0.001 \
            --bucket-cap-mb="$BUCKET" --out="$5" >"$5.$r" 2>&1 &
        pids+=($!)
    done
    for p in "${pids[@]}"; do wait "$p" || { cat "$5".*; exit 1; }; done
}

table() { # HOSTS RANKS_A_HOST RATIO CABLES
    python3 - "$WORK" "$@" <<'PY'
import glob, json, statistics, sys
work, hosts, local, ratio, cables = sys.argv[1:]
print(f"\n{hosts} hosts x {local} rank{'s' * (local != '1')}, {cables} cable{'s' * (cables != '1')} a host, the server's {ratio} x as fast: ms a step, rank 0, the median of its steps (least, median run)")
for s in ("ring", "ps-sync", "hierarchical", "hybrid:auto"):
    ms = []
    for f in glob.glob(f"{work}/{s}.*/metrics-0.jsonl"):
        steps = [json.loads(line)["step_ns"] for line in open(f)]
        ms.append(1e-6 * statistics.median(steps[2:]))
    said = ""
    for f in glob.glob(f"{work}/{s}.1.0"):
        said = "".join(l.split("hybrid: ")[1].strip() for l in open(f) if "to the server:" in l)
    if ms: print(f"  {s:14} {min(ms):7.1f} {statistics.median(ms):7.1f}   {said}")
PY
}

(umask 077; od -An -N16 -tx1 /dev/urandom | tr -d ' \n' >"$WORK/token")
[ $# -gt 0 ] || set -- 2x2:4 4x2:4 2x1:2+ 4x1:4+ 2x2:1 2x1:1
for c in "$@"; do
    hosts=${c%x*} rest=${c#*x} cables=1
    local=${rest%:*} ratio=${rest#*:}
    case $ratio in *+) ratio=${ratio%+} cables=2 ;; esac
    make_hosts "$hosts" "$ratio" "$cables"
    for ((i = 1; i <= REPEAT; i++)); do
        for s in ring ps-sync hierarchical hybrid:auto; do
            run_once $s "$hosts" "$local" "$cables" "$WORK/$s.$i"
        done
    done
    table "$hosts" "$local" "$ratio" "$cables"
    drop_hosts
    rm -rf "${WORK:?}"/*.[0-9]*
done
