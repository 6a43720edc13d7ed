#!/bin/sh
# lines.sh: the product's lines by folder (*.c *.h *.cu *.cuh) and the budget of tools/lines.txt. Exit 1 if a folder exceeds
# its budget: a commit that needs more raises the number, and says why in its body.
cd "$(dirname "$0")/.." || exit 2
for folder in $(sed 's/#.*//' tools/lines.txt | awk '{ print $1 }'); do
    find "$folder" -name '*.[ch]' -o -name '*.cu' -o -name '*.cuh' | xargs cat | wc -l
done | awk '
    BEGIN { while ((getline line < "tools/lines.txt") > 0) if (line !~ /^(#|$)/) { split(line, f, " "); name[++n] = f[1]; budget[n] = f[2] } }
    {
        over = $1 > budget[NR] ? "  over the budget: make it smaller, or raise the number in tools/lines.txt and say why" : ""
        printf "%-20s %7d of %7d%s\n", name[NR], $1, budget[NR], over
        sum += $1; all += budget[NR]; bad += over != ""
    }
    END { printf "%-20s %7d of %7d\n", "all", sum, all; exit bad > 0 }'
