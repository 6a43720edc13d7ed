#!/bin/sh
# ref_hashes.sh BUILD: trains on the device ref under ring, ps-sync and solo for 2 and 3 workers, about 800 samples in total, and
# prints a line for each run: workers, optimizer, strategy, and the SHA-256 of the weights, which is the same on every machine.
[ -x "$1/entrain" ] || { echo "ref_hashes.sh BUILD: expected a build folder" >&2; exit 2; }
out=$(mktemp -d) || exit 1
trap 'rm -rf "$out"' EXIT
hash() {
    what=$1; shift
    timeout -k 5 "${HASH_SECONDS:-120}" "$BUILD/entrain" run --device=ref --data=synthetic --limit-train-samples=97 --limit-test-samples=8 \
        --steps=25 --out="$out/run" --overwrite "$@" > "$out/log" 2>&1 || { cat "$out/log" >&2; exit 1; }
    sed -n "s/.*\"params_sha256\": \"\([0-9a-f]*\)\".*/$what \1/p" "$out/run/result.json"
}
BUILD=$1
for w in 2 3; do
    for strategy in ring ps-sync; do
        hash "$w sgd $strategy" -n $w --strategy=$strategy --batch-size=2 || exit 1
    done
    hash "$w sgd solo" -n 1 --strategy=solo --accumulate=$w --batch-size=2 || exit 1
done
hash "2 adamw ring" -n 2 --strategy=ring --batch-size=2 --optimizer=adamw --lr=0.001
