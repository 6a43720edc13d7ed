/* bad_plugin.c - plugins that break the contract, one per value of BAD: what the loader must refuse. */
#include "entrain/strategy.h"

enum {
    OTHER_ABI = 1,
    SMALL_TABLE,
    BAD_NAME,
    NO_SUBMIT,
    NO_ENTRY,
    LOOP,
    UNKNOWN_FLAG,
    BAD_OPTION,
    NO_TABLE,
    SAME_OPTION,
    TWO_FLAGS
};

static en_status submit(en_host *host, void *state, const en_bucket *bucket, en_req *req)
{
    (void)host, (void)req;
    (void)state;
    (void)bucket;
    return EN_OK;
}

static const en_option options[] = {{.size = sizeof(en_option),
                                     .type = EN_OPT_INT,
                                     .key = "period",
                                     .help = "its default is not in its range",
                                     .value = BAD == BAD_OPTION ? 0 : 1,
                                     .min = 1,
                                     .max = 10},
                                    {.size = BAD == SAME_OPTION ? sizeof(en_option) : 0,
                                     .type = EN_OPT_INT,
                                     .key = "period",
                                     .help = "there already",
                                     .max = 10},
                                    {0}};

static const en_strategy table = {
    .abi = BAD == OTHER_ABI ? 99 : EN_STRATEGY_ABI,
    .size = BAD == SMALL_TABLE ? 24 : sizeof(en_strategy),
    .name = BAD == BAD_NAME ? "My Strategy" : "bad",
    .help = "for the tests",
    .flags = BAD == UNKNOWN_FLAG ? 0x40000000u
             : BAD == TWO_FLAGS  ? EN_USES_GROUPS | EN_SHARED_PARAMS
                                 : 0,
    .options = options,
    .next = BAD == LOOP ? &table : NULL,
    .submit = BAD == NO_SUBMIT ? NULL : submit,
};

#if BAD == 5
EN_EXPORT const en_strategy *another_entry(uint32_t host_abi);
EN_EXPORT const en_strategy *another_entry(uint32_t host_abi)
#else
EN_EXPORT const en_strategy *en_strategy_entry(uint32_t host_abi)
#endif
{
    return BAD == NO_TABLE || host_abi != EN_STRATEGY_ABI ? NULL : &table;
}
