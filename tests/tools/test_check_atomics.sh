#!/bin/sh
# test_check_atomics.sh: tools/check_atomics.py finds one offence of each kind in a small tree, and allows the rest. Where there
# is a clang: the product uses no atomic without a call, which the count would miss.
top=$(cd "$(dirname "$0")/../.." && pwd) || exit 2
work=$(mktemp -d) || exit 2
trap 'rm -rf "$work"' EXIT
bad() { echo "$*"; exit 1; }
check() { said=$("$top/tools/check_atomics.py" "$@" "$work"); code=$?; }
finds() { check; [ $code = 1 ] && [ "$(echo "$said" | grep -c "$1")" = 1 ] || bad "not found: $1 in: $said"; }

mkdir -p "$work/docs" "$work/core"
cat > "$work/core/a.c" <<'END'
/* atomic_load(&in_a_comment) */
struct box { _Atomic(int *) full; _Atomic int count[2]; };
void put(struct box *b, int *x) { atomic_store_explicit(&b->full, x, memory_order_release); atomic_fetch_add(&b->count[0], 1); }
int *get(struct box *b) { return atomic_load_explicit(&b->full, memory_order_acquire); }
END
cat > "$work/docs/memory-order.md" <<'END'
| flag | declared | stores | loads | pair | what |
|---|---|---|---|---|---|
| `full` | `core/a.c:2` | `core/a.c:3` release | `core/a.c:4` acquire | release -> acquire | x |
| `count` | `core/a.c:2` | `core/a.c:3` | - | seq_cst | nothing |
END
check
[ $code = 0 ] || bad "refused what is allowed: $said"

sed -i '1i int line;' "$work/core/a.c"
finds '`full`'
check --write
[ $code = 0 ] && grep -q '`core/a.c:5` acquire' "$work/docs/memory-order.md" || bad "--write put in no lines: $said"

sed -i 's/memory_order_acquire/memory_order_relaxed/' "$work/core/a.c"
finds '`full`'
sed -i 's/memory_order_relaxed/memory_order_acquire/' "$work/core/a.c"

echo 'void more(struct box *b) { atomic_store(&b->other, 1); }' > "$work/core/b.c"
finds 'core/b.c:1: other '
rm "$work/core/b.c"

sed -i 's/^| `count`/| `count`, `gone`/' "$work/docs/memory-order.md"
finds '\<gone\>'

command -v clang >/dev/null || exit 0
cd "$top" || exit 2
plain=$(grep -rlE '_Atomic|atomic_' --include=*.c cli core data ops rank runtime server worker | while read -r file; do
    clang -fsyntax-only -std=c11 -D_GNU_SOURCE -Wno-everything -Watomic-implicit-seq-cst -I. -Iinclude "$file" 2>&1 | grep warning:
done)
[ -z "$plain" ] || bad "an atomic is used without a call: $plain"
