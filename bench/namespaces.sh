#!/bin/sh
# namespaces.sh N CMD... - runs CMD while N network namespaces act as N hosts, each with a veth cable to one bridge.
# $HOSTS has the prefix of their names: $HOSTS-0 .. $HOSTS-(N-1) with the addresses 10.78.0.1 .. 10.78.0.N.
#
#     bench/namespaces.sh 2 sh -c 'build/bench/bench_tcp_limit --ranks=2 --hosts=$HOSTS'
#
# RATE=200mbit limits every cable to that rate in each direction. Needs root and iproute2. Everything is removed at the end.
set -eu
hosts=$1
shift
HOSTS=bench-$$
export HOSTS

down() {
    i=0
    while [ "$i" -lt "$hosts" ]; do
        ip netns del "$HOSTS-$i" 2>/dev/null || true
        i=$((i + 1))
    done
    ip netns del "$HOSTS-sw" 2>/dev/null || true
}
trap down EXIT
trap 'exit 1' HUP INT TERM

ip netns add "$HOSTS-sw"
ip -n "$HOSTS-sw" link add br0 type bridge
ip -n "$HOSTS-sw" link set br0 up
i=0
while [ "$i" -lt "$hosts" ]; do
    host=$HOSTS-$i
    ip netns add "$host"
    ip link add eth0 netns "$host" type veth peer name "v$i" netns "$HOSTS-sw"
    ip -n "$HOSTS-sw" link set "v$i" master br0 up
    ip -n "$host" link set lo up
    ip -n "$host" addr add "10.78.0.$((i + 1))/24" dev eth0
    ip -n "$host" link set eth0 up
    if [ -n "${RATE:-}" ]; then
        ip netns exec "$HOSTS-sw" tc qdisc add dev "v$i" root tbf rate "$RATE" burst 256k latency 50ms
        ip netns exec "$host" tc qdisc add dev eth0 root tbf rate "$RATE" burst 256k latency 50ms
    fi
    i=$((i + 1))
done
"$@"
