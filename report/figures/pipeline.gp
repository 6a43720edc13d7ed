# One step of a rank with several devices: a row per stage. $d: row, from, to [ms], whether it is backward, chunk.
width = 1000
height = 86 + 38*rows
pixels = (width - 100)/ms # of a millisecond
letter = 8
set xlabel sprintf('ms from the begin of the last full step of rank 0, seed %s', seed)
set xrange [0:ms]
set grid noxtics
do for [i=1:rows] {
    set object i rectangle from first 0, first i - 0.4 to first ms, first i + 0.4 fs solid 1.0 noborder fc rgb '#e4e8ec'
}
do for [i=1:|$d|] {
    row = word($d[i], 1) + 0
    begin = word($d[i], 2) + 0
    end = word($d[i], 3) + 0
    is_backward = word($d[i], 4) + 0
    chunk = word($d[i], 5)
    box = pixels*(end - begin)
    fill = is_backward ? '#0072b2' : '#9fc6e3'
    set object i + rows rectangle from first begin, first row - 0.4 to first end, first row + 0.4 \
        fs solid 1.0 border lc rgb '#ffffff' fc rgb fill lw 1
    if (box < 4) { set object i + rows fs solid 1.0 noborder } # it would be no more than its border
    if (box >= letter*strlen(chunk) + 2) {
        name = (box < letter*(strlen(chunk) + 1) + 4 ? '' : is_backward ? 'B' : 'F').chunk
        set label i + 100 name at first (begin + end)/2, first row center front \
            tc rgb (is_backward ? '#ffffff' : '#1c2733') font ',13'
    }
}
eval terminal
plot NaN
