# One step. $d: row, from, to [ms], phase (-1: none of them; 6: exchange hidden by compute, a strip along the foot).
# Rectangles, not a plot of data: they are drawn in the given order, nested spans last.
width = 480
height = 112 + 26*rows
set xlabel sprintf('ms from the begin of step %d, seed %s', step, seed)
set xrange [0:ms]
do for [i=1:|$d|] {
    row = word($d[i], 1) + 0
    begin = word($d[i], 2) + 0
    end = word($d[i], 3) + 0
    p = word($d[i], 4) + 0
    if (begin < 0) { begin = 0 }
    if (end > ms) { end = ms }
    fill = p < 0 ? '#ffffff' : phase[p == 6 ? 4 : p + 1]
    set object i rectangle from first begin, first row + (p == 6 ? 0.14 : -0.34) to first end, first row + 0.34 \
        fs solid 1.0 border lc rgb '#5b6875' fc rgb fill lw 0.6
    if (p == 2) { set object i fs pattern 4 border lc rgb '#5b6875' }
}
eval terminal
plot NaN
