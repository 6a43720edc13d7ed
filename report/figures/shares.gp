# Samples of each worker. $d: row, applied, computed, arm.
width = 480
height = 112 + 24*rows
set xlabel 'thousand samples (outline: computed)'
grouped(digits) = strlen(digits) <= 3 ? digits : grouped(digits[1:strlen(digits)-3]).' '.digits[strlen(digits)-2:*]
eval terminal
plot for [a=1:arms] $d using ($2/2000):($4 == a ? $1 : NaN):(0):($2/1000):($1-0.34):($1+0.34) with boxxyerror \
         fs solid 0.85 noborder fc rgb colour[a], \
     $d using ($3/2000):1:(0):($3/1000):($1-0.34):($1+0.34) with boxxyerror lw 0.8 fs empty border lc rgb ink fc rgb ink, \
     $d using ($3/1000):1:(grouped(sprintf('%.0f', $2))) with labels left offset 0.5,0 tc rgb ink font ',12'
