/* pixels_tool.c - what the reader makes of a set's test images, for test_pixels.py:
 *
 *     pixels_tool FOLDER RESIZE AUGMENT      "none", "crop:20:0", ..
 *
 * writes them to standard output, (n, height, width, channels) float32, normalised to byte / 255. */
#include <stdio.h>
#include <stdlib.h>

#include "core/memory.h"
#include "data/dataset.h"
#include "run/units.h"

int main(int argc, char **argv)
{
    if (argc != 4) return 2;
    eni_data_options options = {.name = argv[1],
                                .transform = {.resize = atoi(argv[2]), .nchannels = 1, .deviation = {1}}};
    eni_dataset *set;
    if (!eni_augment_parse(argv[3], &options.transform) || eni_dataset_open(&options, &set) != EN_OK)
        return 2;
    const size_t count = set->split[ENI_TEST].count;
    float *x = eni_alloc_array(count, set->sample_floats * sizeof *x);
    if (x == NULL) return 2;
    eni_dataset_range(set, ENI_TEST, 0, count, x, NULL);
    const size_t n = fwrite(x, sizeof *x * set->sample_floats, count, stdout);
    eni_free(x);
    eni_dataset_close(set);
    return n == count && fflush(stdout) == 0 ? 0 : 1;
}
