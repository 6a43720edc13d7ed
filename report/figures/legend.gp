# Only a key: of the arms, or of the phases.
width = is_of_arms ? 180 : 230
height = 16 + 20*names
unset border
unset tics
unset grid
set margins 0,0,0,0
set key left Left reverse center width 2
eval terminal
if (is_of_arms) {
    plot [0:1] [0:1] for [i=1:names] NaN with linespoints lw 2 dt dash[i] pt marker[i] ps 0.8 lc rgb colour[i] title label[i]
} else {
    plot [0:1] [0:1] for [i=1:names] NaN with boxes fs solid lc rgb phase[i] title label[i]
}
