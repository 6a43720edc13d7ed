/* transform.h - the transform of a set's pixels, as the flags give it (--resize, --augment, --normalize). */
#ifndef RUN_TRANSFORM_H
#define RUN_TRANSFORM_H

#include <stdbool.h>

enum { ENI_CHANNELS = 3, ENI_SIDE_MAX = 4096 };

/* In the order of application. All zero: only the normalisation of the set. */
typedef struct eni_transform {
    int resize;    /* side of the square that images become; 0: as they are */
    int pad, crop; /* black pixels on each side, then the side of the square that is cut out; crop 0: none */
    bool has_flip; /* every second image is mirrored */
    bool is_test_drawn; /* test images are cropped and mirrored at random too; else: cropped at the centre */
    int nchannels;      /* of the normalisation; 0: the set's own */
    float mean[ENI_CHANNELS], deviation[ENI_CHANNELS];
} eni_transform;

/* The transform as texts, named as the flags: "224", "crop:32:4,flip", "off", .. Stored in checkpoints as facts. */
#define ENI_NORMALIZE_GREY "0.1307:0.3081"
typedef struct eni_pixel_facts {
    char resize[12], augment[32], augment_test[4], normalize[128];
} eni_pixel_facts;

#endif
