/* device_list.c - see device_list.h. */
#include "run/device_list.h"

#include <string.h>

static const char expected[] = "auto, ref, cpu, cuda, cuda:INDEX, cuda:all, or several of one kind, such as "
                               "cpu:0,cpu:1 or cuda:0,cuda:1";

/* "12" of "12,cpu:13"; -1: not an index. */
static int read_index(const char *text, size_t length)
{
    int index = 0;
    if (length == 0 || length > 4 || strspn(text, "0123456789") < length) return -1;
    for (size_t i = 0; i < length; i++)
        index = 10 * index + (text[i] - '0');
    return index <= ENI_DEVICE_INDEX_MAX ? index : -1;
}

/* Adds one item, KIND:INDEX, of `length` characters. */
static const char *add(eni_device_list *list, const char *one, size_t length)
{
    const size_t kind = strlen(list->kind);
    const char *colon = memchr(one, ':', length);
    if (colon == NULL) return expected;
    if ((size_t)(colon - one) != kind || strncmp(one, list->kind, kind) != 0)
        return "devices of one kind, such as cpu:0,cpu:1 or cuda:0,cuda:1";
    const int index = read_index(colon + 1, length - kind - 1);
    if (index < 0) return expected;
    for (int i = 0; i < list->n; i++)
        if (list->index[i] == index) return "each device once, such as cpu:0,cpu:1 or cuda:0,cuda:1";
    if (list->n == ENI_DEVICES_MAX) return "at most 64 devices";
    list->index[list->n++] = index;
    return NULL;
}

const char *eni_device_list_read(const char *spec, eni_device_list *list_out)
{
    eni_device_list list = {0};
    const size_t kind = strspn(spec, "abcdefghijklmnopqrstuvwxyz0123456789_");
    if (kind == 0 || kind >= sizeof list.kind || (spec[kind] != '\0' && spec[kind] != ':')) return expected;
    memcpy(list.kind, spec, kind);
    list.is_all = strcmp(spec, "cuda:all") == 0;
    const char *wrong = spec[kind] == ':' && strcmp(list.kind, "auto") == 0 ? expected : NULL;
    if (spec[kind] == ':' && !list.is_all)
        for (const char *one = spec; wrong == NULL;) {
            const size_t length = strcspn(one, ",+"); /* arms of a comparison write '+' for ',' */
            wrong = add(&list, one, length);
            if (one[length] == '\0') break;
            one += length + 1;
        }
    if (wrong == NULL) *list_out = list;
    return wrong;
}

bool eni_device_list_is_gpu(const eni_device_list *list)
{
    return strcmp(list->kind, "cuda") == 0;
}
