/* fuzz_control.c - bytes of any kind as a control message, with its key-values copied out: what is accepted
 * must encode and decode to itself. The same bytes also as the file of a run. */
#include <stdlib.h>
#include <string.h>

#include "core/log.h"
#include "core/memory.h"
#include "runtime/control/message.h"
#include "runtime/control/runs.h"
#include "tests/fuzz/must.h"
#include "tests/fuzz/mutate.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t bytes, size_t max_bytes, unsigned seed)
{
    return fuzz_mutate_array(data, bytes, max_bytes, seed);
}

/* The message's key-values as ours, so that it can be encoded again. */
static const eni_key_value *take(eni_key_value_list *list)
{
    const eni_key_value *key_values;
    must(eni_key_values_take(list, &key_values) == EN_OK);
    list->pair = key_values;
    return key_values;
}

static void read_as_status(const uint8_t *data, size_t bytes)
{
    static const char head[16] = "ENTrun1"; /* and the time of writing */
    uint8_t *file = malloc(sizeof head + bytes);
    eni_run_status run;
    must(file != NULL);
    memcpy(file, head, sizeof head);
    if (bytes > 0) memcpy(file + sizeof head, data, bytes);
    if (eni_run_status_read(file, sizeof head + bytes, &run) == EN_OK) {
        eni_free(run.attributes);
        eni_free(run.rank);
    }
    free(file);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    enum { PREFIX = 4 };
    eni_message message, again;
    eni_link first, second;
    const char *why = NULL;
    eni_log_set_level(-1);
    read_as_status(data, bytes);
    if (eni_message_get(data, bytes, &message, &why) != EN_OK) {
        must(why != NULL);
        return 0;
    }
    const eni_key_value *lists[4] = {take(&message.key_values), take(&message.member_data), NULL, NULL};
    eni_link_init(&first, -1);
    eni_link_init(&second, -1);
    must(eni_message_put(&first, &message) == EN_OK);
    must(eni_message_get(first.out.data + PREFIX, first.out.bytes - PREFIX, &again, NULL) == EN_OK);
    lists[2] = take(&again.key_values);
    lists[3] = take(&again.member_data);
    must(eni_message_put(&second, &again) == EN_OK);
    must(first.out.bytes == second.out.bytes &&
         memcmp(first.out.data, second.out.data, first.out.bytes) == 0);
    for (int i = 0; i < 4; i++)
        eni_free(lists[i]);
    eni_link_fini(&first);
    eni_link_fini(&second);
    return 0;
}
