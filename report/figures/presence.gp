# Ranks over time. $d: row, from, to [s], how it ended (0 stayed, 1 left, 2 was lost).
width = 720
height = 86 + 26*rows
array fill[3] = ['#9fc6e3', '#0072b2', '#d55e00']
set xlabel sprintf('seconds on the training clock, seed %s', seed)
set xrange [0:last]
do for [i=1:|$d|] {
    row = word($d[i], 1) + 0
    begin = word($d[i], 2) + 0
    end = word($d[i], 3) + 0
    set object i rectangle from first begin, first row - 0.32 to first end, first row + 0.32 \
        fs solid 1.0 noborder fc rgb fill[1 + word($d[i], 4)]
}
eval terminal
plot NaN
