# Accuracy (loss, without classes) over time or over samples: a thin line per run, a bold one per arm's median.
# $d: x, y; a set for each run, then for each median; line_arm[i] is the arm of the i-th.
width = 480
height = 320
set xlabel is_over_time ? 'training clock, s' : 'samples, thousands'
set ylabel what.(has_classes ? ', %' : '') offset 1,0
set yrange [bottom:*]
set rmargin 2
if (has_target) {
    set arrow 1 from graph 0, first target to graph 1, first target nohead lc rgb ink dt '-' lw 1
    set label 1 'target '.target_text at graph 0.985, first target right offset 0,0.55 tc rgb ink font ',12'
}
if (bottom > 0) {
    do for [i=0:1] {
        along = 0.025 + 0.02*i
        set arrow from graph -0.014, graph along to graph 0.014, graph along + 0.016 nohead front lw 1.4 lc rgb ink
    }
}
pale(colour) = '#99'.substr(colour, 2, 7)
eval terminal
plot for [i=1:runs] $d index i-1 using 1:2 with lines lw 0.8 dt dash[line_arm[i]] lc rgb pale(colour[line_arm[i]]), \
     for [i=runs+1:lines] $d index i-1 using 1:2 with linespoints lw 2.4 dt dash[line_arm[i]] \
         pt marker[line_arm[i]] - line_open[i] ps 0.62 lc rgb colour[line_arm[i]], \
     NaN
