/* test_message.c - control messages: every type comes back, lengths hold, strings and key-values survive the
 * copy.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "core/digest.h"
#include "core/memory.h"
#include "runtime/control/message.h"

static const eni_key_value some_key_values[] = {{"lr", "0.01"}, {"model", "convnet"}, {"empty", ""}};

static eni_message example(uint32_t type)
{
    eni_message m = {.type = type,
                     .rank = 3,
                     .nranks = 4,
                     .pid = 4711,
                     .step = 17,
                     .epoch = 2,
                     .status = 9,
                     .count = 5,
                     .incarnation = 8,
                     .budget = 1000,
                     .index = 3,
                     .samples = 640,
                     .server = 1,
                     .nservers = 2,
                     .to = -2,
                     .waited_ns = 5000000000,
                     .born = 123456,
                     .number = 12,
                     .done = 11,
                     .moves = 99,
                     .bytes = 4000000,
                     .op = 3,
                     .waits = 1,
                     .has_index = true,
                     .has_time = true,
                     .kind = 1,
                     .amount = -1,
                     .what = "all-reduce",
                     .name = "fc2.weight",
                     .host = "a",
                     .host_id = "boot/1/2",
                     .tag = "hash",
                     .phase = "forward",
                     .reason = "because",
                     .score = {41, 256, 128, 99, 1.25},
                     .death = {.rank = 1,
                               .pid = 4711,
                               .step = 41,
                               .is_stopped = true,
                               .host = "a",
                               .phase = "forward",
                               .cause = "because"}};
    m.key_values = (eni_key_value_list){some_key_values, 3, {NULL, 0}};
    m.member_data = (eni_key_value_list){some_key_values, 1, {NULL, 0}};
    m.blob = (eni_span){(const uint8_t *)"blob\0blob", 9};
    return m;
}

/* The frame of a message, in a link that was never connected. */
static eni_link encode(const eni_message *m)
{
    eni_link link;
    eni_link_init(&link, -1);
    assert_int_equal(eni_message_put(&link, m), EN_OK);
    return link;
}

static const uint32_t all_types[] = {
    ENI_CTL_JOIN,    ENI_CTL_HEARTBEAT, ENI_CTL_CLAIM,   ENI_CTL_GATHER,  ENI_CTL_BYE,      ENI_CTL_ABORT,
    ENI_CTL_DONE,    ENI_CTL_WAITING,   ENI_CTL_STOP,    ENI_CTL_PAUSED,  ENI_CTL_READY,    ENI_CTL_ADDED,
    ENI_CTL_REFUSED, ENI_CTL_PEER,      ENI_CTL_WELCOME, ENI_CTL_CLAIMED, ENI_CTL_GATHERED, ENI_CTL_DEAD,
    ENI_CTL_ENDED,   ENI_CTL_LEADER,    ENI_CTL_NOTICE,  ENI_CTL_PAUSE,   ENI_CTL_STOPPING, ENI_CTL_LEFT,
    ENI_CTL_SERVE,   ENI_CTL_RENEWED,   ENI_CTL_ASK,     ENI_CTL_SCORE,   ENI_CTL_SCORED,   ENI_CTL_WISH,
    ENI_CTL_CAME,    ENI_CTL_WENT,      ENI_CTL_LEAVE,   ENI_CTL_SAVE,    ENI_CTL_SAVING};
enum { NTYPES = sizeof all_types / sizeof *all_types, PREFIX = 4 };

static void every_type_comes_back(void **state)
{
    (void)state;
    for (size_t i = 0; i < NTYPES; i++) {
        eni_message in = example(all_types[i]), out, again;
        eni_link link = encode(&in);
        assert_int_equal(eni_message_get(link.out.data + PREFIX, link.out.bytes - PREFIX, &out, NULL), EN_OK);
        assert_int_equal(out.type, in.type);
        /* Encoding what was decoded gives the same bytes, so no field was lost. */
        const eni_key_value *key_values, *member_data;
        assert_int_equal(eni_key_values_take(&out.key_values, &key_values), EN_OK);
        assert_int_equal(eni_key_values_take(&out.member_data, &member_data), EN_OK);
        again = out;
        again.key_values.pair = key_values;
        again.member_data.pair = member_data;
        eni_link second = encode(&again);
        assert_int_equal(second.out.bytes, link.out.bytes);
        assert_memory_equal(second.out.data, link.out.data, link.out.bytes);
        eni_free(key_values);
        eni_free(member_data);
        eni_link_fini(&link);
        eni_link_fini(&second);
    }
}

/* All of them, one frame after the other: a change of these bytes is another version of the protocol. */
static void the_bytes_are_those_of_the_version(void **state)
{
    (void)state;
    char hex[ENI_DIGEST_HEX];
    eni_digest all;
    eni_digest_begin(&all);
    for (size_t i = 0; i < NTYPES; i++) {
        const eni_message m = example(all_types[i]);
        eni_link link = encode(&m);
        eni_digest_add(&all, link.out.data, link.out.bytes);
        eni_link_fini(&link);
    }
    eni_digest_end(&all, hex);
    assert_string_equal(hex, "72c5cf7af9e29e2b36ddcc2075442cc94fe0895811d43932b1f4ca0a99c4a53f");
}

static void every_truncation_and_byte_is_survived(void **state)
{
    (void)state;
    for (size_t i = 0; i < NTYPES; i++) {
        eni_message in = example(all_types[i]), out;
        eni_link link = encode(&in);
        size_t length = link.out.bytes - PREFIX;
        uint8_t *bytes = link.out.data + PREFIX;
        for (size_t n = 0; n < length; n++) {
            uint8_t *exact = eni_alloc(n); /* its own memory, so that a read too far shows */
            memcpy(exact, bytes, n);
            assert_int_equal(eni_message_get(exact, n, &out, NULL), EN_EPROTO);
            eni_free(exact);
        }
        for (size_t at = 0; at < length; at++)
            for (int value = 0; value < 256; value += 5) {
                uint8_t kept = bytes[at];
                bytes[at] = (uint8_t)value;
                eni_message_get(bytes, length, &out, NULL);
                bytes[at] = kept;
            }
        eni_link_fini(&link);
    }
}

static void another_version_is_told_apart(void **state)
{
    (void)state;
    eni_message in = example(ENI_CTL_JOIN), out;
    const char *why;
    eni_link link = encode(&in);
    uint8_t *bytes = link.out.data + PREFIX;
    enum { VERSION_AT = 9 }; /* array in 3 bytes, type, magic in 5, version */
    assert_int_equal(bytes[VERSION_AT], ENI_CONTROL_VERSION);
    bytes[VERSION_AT] = ENI_CONTROL_VERSION + 1;
    assert_int_equal(eni_message_get(bytes, link.out.bytes - PREFIX, &out, &why), EN_EVERSION);
    assert_int_equal(out.number, ENI_CONTROL_VERSION + 1);
    bytes[VERSION_AT] = ENI_CONTROL_VERSION;
    bytes[VERSION_AT - 2] ^= 1;
    assert_int_equal(eni_message_get(bytes, link.out.bytes - PREFIX, &out, &why), EN_EPROTO);
    assert_non_null(strstr(why, "magic"));
    eni_link_fini(&link);
}

static void short_types_stay_short(void **state)
{
    (void)state;
    uint8_t *bytes = eni_alloc(ENI_FRAME_MAX);
    eni_message out;
    const char *why;
    const uint8_t abort_text[] = {0x92, ENI_CTL_ABORT, 0xda, 0x20, 0x00}; /* a string of 8192 bytes */
    memcpy(bytes, abort_text, sizeof abort_text);
    memset(bytes + sizeof abort_text, 'x', 8192);
    assert_int_equal(eni_message_get(bytes, sizeof abort_text + 8192, &out, &why), EN_EPROTO);
    assert_non_null(strstr(why, "longer"));
    eni_free(bytes);
}

static void an_oversized_message_is_not_sent(void **state)
{
    (void)state;
    char *value = eni_alloc(ENI_FRAME_MAX + 1);
    memset(value, 'v', ENI_FRAME_MAX);
    eni_key_value pair = {"k", value};
    eni_message m = example(ENI_CTL_PEER);
    m.member_data = (eni_key_value_list){&pair, 1, {NULL, 0}};
    eni_link link;
    eni_link_init(&link, -1);
    assert_int_equal(eni_message_put(&link, &m), EN_EINVAL);
    assert_int_equal(link.out.bytes, 0); /* and the stream is still whole */
    eni_link_fini(&link);
    eni_free(value);
}

static void our_own_control_characters_are_replaced(void **state)
{
    (void)state;
    eni_message in = example(ENI_CTL_ABORT), out;
    snprintf(in.reason, sizeof in.reason, "two\nlines");
    eni_link link = encode(&in);
    assert_int_equal(eni_message_get(link.out.data + PREFIX, link.out.bytes - PREFIX, &out, NULL), EN_OK);
    assert_string_equal(out.reason, "two?lines");
    eni_link_fini(&link);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(every_type_comes_back),
                                       cmocka_unit_test(the_bytes_are_those_of_the_version),
                                       cmocka_unit_test(every_truncation_and_byte_is_survived),
                                       cmocka_unit_test(another_version_is_told_apart),
                                       cmocka_unit_test(short_types_stay_short),
                                       cmocka_unit_test(an_oversized_message_is_not_sent),
                                       cmocka_unit_test(our_own_control_characters_are_replaced)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
