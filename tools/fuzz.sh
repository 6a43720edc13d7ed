#!/bin/sh
# fuzz.sh SECONDS: builds the libFuzzer targets with clang, ASan and UBSan, and runs each from its corpus.
set -e
cd "$(dirname "$0")/.."
cmake -S . -B build-fuzz -DCMAKE_C_COMPILER=clang -DEN_FUZZ=ON -DEN_SANITIZE=address,undefined -DCMAKE_BUILD_TYPE=Debug \
    -DCMAKE_C_FLAGS_DEBUG='-O1 -g' >/dev/null
cmake --build build-fuzz -j "$(nproc)" --target fuzzers >/dev/null
for target in build-fuzz/fuzz/fuzz_*; do
    name=$(basename "$target"); name=${name#fuzz_}
    work=$(mktemp -d); cp -r "tests/fuzz/corpus/$name/." "$work" 2>/dev/null || true
    echo "fuzz $name for $1 s"
    "$target" -artifact_prefix=build-fuzz/ -max_total_time="$1" -rss_limit_mb=1024 -print_final_stats=1 "$work" 2>&1 | grep -E 'stat::number_of_executed_units|ERROR|SUMMARY' || { echo "fuzz $name failed"; exit 1; }
    rm -rf "$work"
done
