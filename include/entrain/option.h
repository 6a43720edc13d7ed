/* option.h - shared by strategies' and networks' files: the export macro, and the options they declare. */
#ifndef ENTRAIN_OPTION_H
#define ENTRAIN_OPTION_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define EN_EXPORT __attribute__((visibility("default")))

/* A named option, checked by the program: --strategy=ssp:bound=3, --model=resnet18:stem=cifar. */
enum { EN_OPT_REAL = 0, EN_OPT_INT = 1, EN_OPT_BOOL = 2, EN_OPT_TEXT = 3 };
typedef struct en_option {
    uint32_t size; /* sizeof(en_option); 0 ends the list */
    uint32_t type;
    const char *key, *help;
    double value, min, max; /* default and range; infinity is written inf */
    const char
        *text; /* default of a text option; of a number: one by the number of workers, "2W" or "0.9/W" */
} en_option;

#ifdef __cplusplus
}
#endif
#endif
