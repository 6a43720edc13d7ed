# The parts of a step's time. $d: row, from, to [ms], phase; the strip of phase 6 is the exchange hidden by compute.
width = 480
height = 112 + 24*rows
set xlabel 'ms per global batch'
row(p) = column(4) == p ? column(1) : NaN
eval terminal
plot for [p=0:1] $d using (($2+$3)/2):(row(p)):2:3:($1-0.36):($1+0.36) with boxxyerror \
         lw 0.6 fs solid 1.0 border lc rgb '#5b6875' fc rgb phase[p+1], \
     $d using (($2+$3)/2):(row(2)):2:3:($1-0.36):($1+0.36) with boxxyerror \
         lw 0.6 fs pattern 4 border lc rgb '#5b6875' fc rgb phase[3], \
     for [p=3:5] $d using (($2+$3)/2):(row(p)):2:3:($1-0.36):($1+0.36) with boxxyerror \
         lw 0.6 fs solid 1.0 border lc rgb '#5b6875' fc rgb phase[p+1], \
     $d using (($2+$3)/2):(row(6)):2:3:($1+0.14):($1+0.35) with boxxyerror fs solid 1.0 noborder fc rgb phase[4]
