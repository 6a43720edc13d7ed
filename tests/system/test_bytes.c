/* test_bytes.c - the counters at the transport: payload is what the algorithm promises, the wire is what the
 * kernel saw, and shared memory puts no payload on it. */
#include <math.h>

#include "tests/system/run.h"

/* Promise: Payload is what the algorithm promises, and wire bytes are what the kernel counted. */

#define STEPS 40
#define JOB   "--device=ref --model=mlp " MADE_UP " --steps=40 --batch-size=4"

typedef struct arm {
    const char *name, *flags;
    int is_ring, is_naive; /* neither: a server, the model once each way */
} arm;

static const arm over_shm[] = {{"ring direct", "--strategy=ring --allreduce=direct", 1, 0},
                               {"ps-sync", "--strategy=ps-sync --shards=2", 0, 0},
                               {"ps-async", "--strategy=ps-async", 0, 0}};
static const arm over_tcp[] = {
    {"ring", "--strategy=ring --allreduce=ring --transport=tcp", 1, 0},
    {"naive", "--strategy=ring --allreduce=naive --transport=tcp", 0, 1},
    {"ps-sync", "--strategy=ps-sync --shards=2 --transport=tcp", 0, 0},
    {"ps-async", "--strategy=ps-async --transport=tcp", 0, 0},
};

/* Elements of the mlp times the bytes of one; padding of the flat vector adds 0.003 %, which moves too. */
#define MODEL_BYTES ((784 * 256 + 256 + 256 * 10 + 10) * 4.0)

/* What all workers send and receive in a step, from the textbook: Patarasuk & Yuan's 2(W-1)/W of the model in
 * either direction, everybody's gradient to everybody, or the model once up and once down. */
static double textbook(const arm *a, int w)
{
    double each = a->is_ring ? 2.0 * (w - 1) / w : a->is_naive ? w - 1 : 1;
    return 2 * each * w * MODEL_BYTES;
}

static double check_payload(const json_t *r, const arm *a, int w)
{
    double payload = number_at(r, "payload_bytes"), theory = number_at(r, "theory_bytes"),
           expected = STEPS * textbook(a, w);
    if (!(fabs(payload - theory) <= 0.001 * theory))
        fail_msg("%s, W = %d: %.0f bytes, theory_bytes %.0f", a->name, w, payload, theory);
    if (!(fabs(theory - expected) <= 1))
        fail_msg("%s, W = %d: theory_bytes %.0f of %.0f", a->name, w, theory, expected);
    const double padding = number_at(r, "padding_bytes");
    if (!(padding > 0) || !(fabs(payload - theory - padding) <= 2))
        fail_msg("%s, W = %d: %.0f bytes moved, %.0f are the model and %.0f padding", a->name, w, payload,
                 theory, padding);
    if (!(fabs(payload - expected) <= 0.001 * expected))
        fail_msg("%s, W = %d: %.0f bytes, the formula says %.0f", a->name, w, payload, expected);
    return payload / expected;
}

static void test_shared_memory(void **state)
{
    (void)state;
    for (int w = 2; w <= 3; w++)
        for (size_t i = 0; i < sizeof over_shm / sizeof *over_shm; i++) {
            json_t *r = train(60, "-n %d %s " JOB, w, over_shm[i].flags);
            double ratio = check_payload(r, &over_shm[i], w), payload = number_at(r, "payload_bytes"),
                   wire = number_at(r, "wire_bytes");
            assert_string_equal(text_at(r, "transport"), "shm");
            /* Headers to a server may cross a socket, payload may not; among ranks there are not even
             * headers. What a rank sends to a server is read once, from the other's memory. */
            assert_true(wire < 0.01 * payload);
            if (i == 0) assert_true(wire == 0);
            /* ring steps one copy of the weights: a rank reads its slice of the W - 1 other gradients, and
             * writes its slice of the weights once, from where all read it: one model in all. */
            if (i == 0)
                assert_true(fabs(number_at(r, "shm_bytes") - STEPS * w * MODEL_BYTES) <= 1e-4 * payload);
            else
                assert_true(number_at(r, "shm_bytes") == payload);
            promise("bytes, shm, W = %d, %s: payload/theory %.4f, wire %.0f of %.0f", w, over_shm[i].name,
                    ratio, wire, payload);
            json_decref(r);
        }
}

/* wire_bytes_with_start counts from the first byte on, as the kernel does. */
static double sum_over_ranks(const json_t *r, const char *key)
{
    double sum = 0;
    size_t i;
    json_t *role;
    json_array_foreach(json_object_get(r, "roles"), i, role)
    {
        if (json_object_get(role, "rank") != NULL) sum += json_number_value(json_object_get(role, key));
    }
    return sum;
}

static void test_tcp(void **state)
{
    (void)state;
    for (int w = 2; w <= 3; w++)
        for (size_t i = 0; i < sizeof over_tcp / sizeof *over_tcp; i++) {
            json_t *r = train(60, "-n %d %s " JOB, w, over_tcp[i].flags);
            double ratio = check_payload(r, &over_tcp[i], w), payload = number_at(r, "payload_bytes"),
                   wire = number_at(r, "wire_bytes"), all = sum_over_ranks(r, "wire_bytes_with_start"),
                   kernel = number_at(r, "tcp_info_bytes");
            assert_string_equal(text_at(r, "transport"), "tcp");
            assert_true(wire >= payload); /* headers included */
            assert_true(number_at(r, "shm_bytes") == 0);
            if (!(fabs(all - kernel) <= 0.02 * kernel))
                fail_msg("%s, W = %d: %.0f bytes counted, TCP_INFO says %.0f", over_tcp[i].name, w, all,
                         kernel);
            promise("bytes, tcp, W = %d, %s: payload/theory %.4f, wire/TCP_INFO %.4f", w, over_tcp[i].name,
                    ratio, all / kernel);
            json_decref(r);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_shared_memory), cmocka_unit_test(test_tcp)};
    return system_main(tests);
}
