#!/bin/sh
# fuzz.sh [SECONDS [TARGET..]]: builds the libFuzzer targets with clang, ASan and UBSan, and runs each (or those
# named) for SECONDS (FUZZ_SECONDS, else 60) from its corpus. FUZZ_RUNS=N: N executions of each instead.
# Exit 1 at the first finding; its input is in build-fuzz/. What is found belongs into tests/fuzz/corpus/TARGET.
# Promise: Parsers take any input, under AddressSanitizer and UndefinedBehaviorSanitizer.
set -e
cd "$(dirname "$0")/.."
seconds=${1:-${FUZZ_SECONDS:-60}}
[ $# -gt 0 ] && shift
budget="-max_total_time=$seconds"
[ -n "$FUZZ_RUNS" ] && budget="-runs=$FUZZ_RUNS"
tools/configured_here.sh build-fuzz
cmake -S . -B build-fuzz -DCMAKE_C_COMPILER=clang -DEN_FUZZ=ON -DEN_SANITIZE=address,undefined -DCMAKE_BUILD_TYPE=Debug \
    -DCMAKE_C_FLAGS_DEBUG='-O1 -g' >/dev/null
cmake --build build-fuzz -j "$(nproc)" --target fuzzers >/dev/null
[ $# -gt 0 ] || set -- $(ls build-fuzz/fuzz | sed -n 's/^fuzz_//p')
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT INT TERM
# A core each. A pipe would hide the fuzzer's exit status.
printf '%s\n' "$@" | xargs -P "$(nproc)" -I NAME sh -c '
    mkdir -p "$2/$1" && cp -r "tests/fuzz/corpus/$1/." "$2/$1" || exit 1
    if ! "build-fuzz/fuzz/fuzz_$1" -artifact_prefix="build-fuzz/$1-" "$3" -timeout=10 -rss_limit_mb=2048 \
        -print_final_stats=1 "$2/$1" >"$2/$1.log" 2>&1; then
        grep -vE "^#[0-9]+" "$2/$1.log" | tail -40
        echo "fuzz $1 failed"
        exit 255 # xargs starts no other
    fi
    echo "fuzz $1: $(grep number_of_executed_units "$2/$1.log")"' sh NAME "$work" "$budget"
