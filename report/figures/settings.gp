# The settings beside each other: a row per setting and arm. $d: row, arm, whether it is real, kind, x, to. Kinds:
# a run (0), one that missed the target, with the arrow's length (1), the median's interval (2), the median (3).
width = 370
height = 86 + 26*rows
set xlabel across
do for [i=1:|$d|] {
    row = word($d[i], 1) + 0
    arm = word($d[i], 2) + 0
    what = word($d[i], 4) + 0
    x = word($d[i], 5) + 0
    if (what == 2) {
        set arrow from first x, first row to first word($d[i], 6) + 0, first row heads back size screen 0.012,90 lw 1.2 lc rgb colour[arm]
    }
    if (what == 3) {
        set arrow from first x, first row - 0.36 to first x, first row + 0.36 nohead front lw 2.2 lc rgb colour[arm]
    }
}
is(w, a, r) = column(4) == w && column(2) == a && column(3) == r
eval terminal
plot for [a=1:arms] for [r=0:1] $d using (is(0, a, r) ? $5 : NaN):1 with points \
         pt marker[a] - !r ps 0.95 lw 1.5 lc rgb colour[a], \
     for [a=1:arms] $d using (is(1, a, 0) || is(1, a, 1) ? $5 : NaN):1:6:(0) with vectors \
         filled head size screen 0.018,22 lw 1.5 lc rgb colour[a], \
     NaN
