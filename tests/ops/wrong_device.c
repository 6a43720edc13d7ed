/* wrong_device.c - device libraries that must be refused: one per value of WRONG. */
#include "entrain/device.h"

#define OTHER_ABI   1
#define SHORT_TABLE 2
#define NO_TABLE    3
#define NO_ENTRY    4
#define OTHER_NAME  6

#if WRONG == NO_ENTRY
int an_unrelated_symbol(void);
__attribute__((visibility("default"))) int an_unrelated_symbol(void)
{
    return 0;
}
#else
const en_device *en_device_entry(uint32_t host_abi);
__attribute__((visibility("default"))) const en_device *en_device_entry(uint32_t host_abi)
{
    static const en_device other_abi = {.abi = EN_DEVICE_ABI + 41, .size = sizeof other_abi, .name = "wrong"};
    static const en_device short_table = {.abi = EN_DEVICE_ABI, .size = 16, .name = "wrong"};
    static const en_device other_name = {.abi = EN_DEVICE_ABI, .size = sizeof other_name, .name = "right"};
    (void)host_abi;
    if (WRONG == OTHER_NAME) return &other_name;
    return WRONG == OTHER_ABI ? &other_abi : WRONG == SHORT_TABLE ? &short_table : NULL;
}
#endif
