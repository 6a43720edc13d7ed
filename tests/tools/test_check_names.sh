#!/bin/sh
# test_check_names.sh: tools/check_names.py finds one offence of each kind in a small tree, and allows the rest.
top=$(cd "$(dirname "$0")/../.." && pwd) || exit 2
work=$(mktemp -d) || exit 2
trap 'rm -rf "$work"' EXIT
bad() { echo "$*"; exit 1; }
check() { said=$("$top/tools/check_names.py" "$work"); code=$?; }
says() { for word; do case $said in *"$word"*) ;; *) return 1 ;; esac; done; [ "$(echo "$said" | wc -l)" = 1 ]; } # one line with all words
members() { for i in $(seq "$1"); do printf ' int member%d;' "$i"; done; }

# ---- what is allowed
mkdir -p "$work/cli" "$work/worker" "$work/ops/cpu" "$work/ops/ref"
touch "$work/cli/main.c" "$work/worker/main.c"
mkdir -p "$work/tests/cli"
touch "$work/tests/cli/test_all.c"
printf '# a reason\n*.c:\n    tests/cli/test_all.c\n' > "$work/tests/mirror.txt"
for device in cpu ref; do echo 'struct en_ctx { int own; };' > "$work/ops/$device/conv.c"; done
{
    echo '/* struct eni_worker { int in_a_comment; }; */ typedef struct eni_worker eni_worker;'
    echo "struct eni_worker {$(members 23) struct { int a, b, c; } part; void (*call)(int a, int b); };"
    echo "struct record {$(members 40) };"
} > "$work/worker/worker.h"
check
[ $code = 0 ] || bad "refused what is allowed: $said"

# ---- what is not
sed -i 's/int member1;/int member1, one_more;/' "$work/worker/worker.h"
check
[ $code = 1 ] && says worker/worker.h eni_worker 26 || bad "an object of 26 members: $said"
rm "$work/worker/worker.h"

for kind in 'struct word { int a; };' 'typedef enum { A } word;' 'typedef int (*word)(int a, int b);' 'typedef float word[4];'; do
    echo 'typedef struct word { int a; } word;' > "$work/cli/a.c"
    echo "$kind" > "$work/worker/b.c"
    check
    [ $code = 1 ] && says word cli/a.c worker/b.c || bad "$kind: $said"
done
rm "$work/cli/a.c" "$work/worker/b.c"

touch "$work/cli/gpus.c" "$work/worker/gpus.c"
check
[ $code = 1 ] && says cli/gpus.c worker/gpus.c || bad "one file name: $said"
rm "$work/cli/gpus.c" "$work/worker/gpus.c"

mkdir -p "$work/runtime/net"
touch "$work/runtime/net/tcp.c"
echo '*/main.c ops/*.c: tests/cli/test_all.c' > "$work/tests/mirror.txt"
check
says runtime/net/tcp.c tests/mirror.txt || bad "no test: $said"
mkdir -p "$work/tests/net"
touch "$work/tests/net/test_tcp.c"
check
[ $code = 0 ] || bad "refused a file with a test: $said"
echo 'runtime/net/tcp.c: tests/cli/gone.c' >> "$work/tests/mirror.txt"
check
[ $code = 1 ] && [ "$(echo "$said" | wc -l)" = 2 ] || bad "a list that is out of date: $said"
