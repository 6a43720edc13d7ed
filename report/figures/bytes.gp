# Bytes of a whole run. $d: row, MB, kind (0 formula, 1 payload, 2 moved through sockets, 3 moved in memory), arm.
width = 480
height = 112 + 20*rows
set xlabel 'MB in a run, all processes'
row(k, a) = column(3) == k && column(4) == a ? column(1) : NaN
eval terminal
plot for [a=1:arms] $d using ($2/2):(row(0, a)):(0):2:($1-0.36):($1+0.36) with boxxyerror \
         lw 0.8 fs empty border lc rgb ink fc rgb ink, \
     for [a=1:arms] $d using ($2/2):(row(1, a)):(0):2:($1-0.36):($1+0.36) with boxxyerror \
         lw 0.8 fs solid 1 noborder fc rgb colour[a], \
     for [a=1:arms] $d using ($2/2):(row(2, a)):(0):2:($1-0.36):($1+0.36) with boxxyerror \
         lw 0.8 fs pattern 4 border lc rgb ink fc rgb colour[a], \
     for [a=1:arms] $d using ($2/2):(row(3, a)):(0):2:($1-0.36):($1+0.36) with boxxyerror \
         lw 0.8 fs solid 0.35 noborder fc rgb colour[a], \
     $d using 2:1:(sprintf($2 < 10 ? '%.1f' : '%.0f', $2)) with labels left offset 0.4,0 tc rgb ink font ',12'
