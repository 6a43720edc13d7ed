#!/bin/sh
# fuzz.sh [SECONDS [TARGET..]]: builds the libFuzzer targets with clang, ASan and UBSan, and runs each (or those
# named) for SECONDS (FUZZ_SECONDS, else 60) from its corpus. FUZZ_RUNS=N: N executions of each instead.
# Exit 1 at the first finding; its input is in build-fuzz/. Add findings to tests/fuzz/corpus/TARGET.
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
for name in "$@"; do
    mkdir -p "$work/$name"
    cp -r "tests/fuzz/corpus/$name/." "$work/$name"
    echo "fuzz $name, $budget"
    # A pipe would hide the fuzzer's exit status.
    if ! "build-fuzz/fuzz/fuzz_$name" -artifact_prefix="build-fuzz/$name-" "$budget" -timeout=10 -rss_limit_mb=2048 \
        -print_final_stats=1 "$work/$name" >"$work/$name.log" 2>&1; then
        grep -vE '^#[0-9]+' "$work/$name.log" | tail -40
        echo "fuzz $name failed"
        exit 1
    fi
    grep number_of_executed_units "$work/$name.log"
done
