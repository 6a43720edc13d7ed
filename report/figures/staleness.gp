# Staleness, a histogram per worker. $d: worker, staleness, per cent of its pushes.
width = 480
height = 250
bar = 0.84/workers
shade(w) = workers == 1 ? 1 : floor(100*(1 - 0.8*w/(workers - 1.0)) + 0.5)/100.0
set xlabel 'staleness, versions'.(is_cut ? ' (last bar: this and more)' : '')
set ylabel 'pushes, %' offset 1,0
set xrange [-0.6:bins - 0.4 + (bins < 3 ? 2 : 0)]
set yrange [0:top]
set xtics bins/12 + 1
set key top right horizontal reverse Left samplen 1.2 tc rgb ink
eval terminal
plot for [w=0:workers-1] $d using ($1 == w ? $2 - 0.42 + bar*(w + 0.5) : NaN):3:(bar) with boxes \
         fs solid (shade(w)) border lc rgb colour[arm] fc rgb colour[arm] title is_per_worker ? sprintf('rank %d', w) : 'all workers'
