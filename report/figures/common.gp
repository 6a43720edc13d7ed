# Shared by all figures. plot.c writes before it: the format, the figure's variables, and its data, $d.
# A figure follows it, sets width and height in pixels of the page, and evaluates `terminal` before it plots.
#
# On paper, 96 of the page's pixels make an inch; an image has two for each, like a high-resolution screen.
terminal = 'set terminal '.( \
    format eq 'pdf' ? 'pdfcairo size width/96.0,height/96.0 linewidth 1 noenhanced font "sans,10.5" butt' : \
    format eq 'png' ? 'pngcairo size 2*width,2*height fontscale 2 linewidth 2 pointscale 2 noenhanced font "sans,10.5" butt' : \
    'svg size width,height dynamic noenhanced font "sans,14" linewidth 1 butt')
ink = '#3d4853'
set encoding utf8
set border 3 lc rgb '#8a94a0'
set tics nomirror scale 0.4 tc rgb ink
set xlabel tc rgb ink
set ylabel tc rgb ink
set grid ytics lc rgb '#e4e8ec' lt 1 lw 1
set key off

if (exists('title')) {
    set tmargin 2
    set label 99 title at graph 0, graph 1 left offset 0,0.9 tc rgb '#1c2733' font ',15'
}

# A row per label, from top to bottom: a plot with labelled rows.
if (rows > 0) {
    set ytics ('' 1) scale 0
    do for [i=1:rows] { set ytics add (label[i] i) }
    set yrange [rows + 0.6:0.4]
    set lmargin margin
    set rmargin 2
    set border 1
    set grid noytics
    set grid xtics lc rgb '#e4e8ec' lt 1 lw 1
}

# x from low to high, at most seven ticks at round numbers. Two strokes mark an axis that does not begin at zero.
if (exists('high')) {
    if (!(high > low)) { high = low + 1 } # a single value, or none
    least = (high - low)/6.0
    unit = 10.0**floor(log10(least))
    set xrange [low:high]
    step = least <= unit ? unit : least <= 2*unit ? 2*unit : least <= 5*unit ? 5*unit : 10*unit
    set xtics step
    if (low > 0) {
        do for [i=0:1] {
            along = 0.025 + 0.02*i
            set arrow from graph along, graph -0.03 to graph along + 0.012, graph 0.03 nohead front lw 1.4 lc rgb ink
        }
    }
}
