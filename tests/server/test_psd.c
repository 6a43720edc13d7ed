/* test_psd.c - a whole run against eni_psd_run: members, clients, shared memory or not, and every way to end.
 */
#include <dirent.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <cmocka.h>
#include <jansson.h>

#include "core/clock.h"
#include "core/log.h"
#include "runtime/client/client.h"
#include "runtime/control/member.h"
#include "runtime/net/host_info.h"
#include "server/psd.h"
#include "tests/port.h"
#include "tests/server/key_values.h"

enum { WORLD = 2, STEPS = 6 };

/* psd in a thread of its own. */
typedef struct server {
    eni_config config;
    eni_address address;
    eni_token token;
    char folder[32], token_file[64];
    int interrupt_fd, port_fd;
    pthread_t thread;
    en_status status;
} server;

static void *run_server(void *user)
{
    server *s = user;
    s->status = eni_psd_run(&s->config, NULL, EN_BUILD_DIR "/plugins", s->interrupt_fd, NULL);
    return NULL;
}

static server *start_server(const char *more)
{
    server *s = calloc(1, sizeof *s);
    char listen[64], file[96];
    s->address = (eni_address){.host = "127.0.0.1", .port = (uint16_t)port_take(&s->port_fd)};
    assert_true(s->address.port != UINT16_MAX);
    snprintf(listen, sizeof listen, "--listen=tcp://127.0.0.1:%u", s->address.port);
    assert_non_null(mkdtemp(strcpy(s->folder, "/tmp/entrain-test-XXXXXX")));
    snprintf(s->token_file, sizeof s->token_file, "%s/token", s->folder);
    snprintf(file, sizeof file, "--token-file=%s", s->token_file);
    char *argv[] = {"psd", listen, file, "--strategy=ps-sync", "--world-size=2", "--quiet", (char *)more};
    assert_int_equal(eni_config_parse(ENI_PSD, more ? 7 : 6, argv, &s->config), EN_OK);
    s->interrupt_fd = eventfd(0, EFD_CLOEXEC);
    assert_int_equal(pthread_create(&s->thread, NULL, run_server, s), 0);
    const int64_t deadline = eni_now_ns() + 5 * ENI_SECOND;
    while (access(s->token_file, F_OK) != 0) {
        assert_true(eni_now_ns() < deadline);
        eni_sleep_until(eni_now_ns() + ENI_MILLI);
    }
    assert_int_equal(eni_token_read(s->token_file, &s->token), EN_OK);
    return s;
}

static en_status end_server(server *s)
{
    pthread_join(s->thread, NULL);
    const en_status st = s->status;
    assert_int_not_equal(access(s->token_file, F_OK), 0); /* it removes its file */
    assert_int_equal(rmdir(s->folder), 0);
    close(s->interrupt_fd);
    close(s->port_fd);
    eni_config_fini(&s->config);
    free(s);
    return st;
}

/* ---- a minimal worker ---------------------------------------------------------------------------------- */

typedef enum ending { LEAVE, VANISH, IGNORE } ending;

typedef struct worker {
    server *server;
    int32_t rank;
    ending ending;
    int is_shared; /* requested, then the result */
    pthread_t thread;
    en_status status;
    float weights[ELEMENTS];
    char report[1 << 16]; /* psd's */
} worker;

static en_status alive(void *user)
{
    return eni_member_status(user);
}

static void plan_buckets(eni_buckets *plan, eni_bucket_range *ranges)
{
    *plan = (eni_buckets){.n = BUCKETS, .count = ELEMENTS, .bucket = ranges};
    for (int b = 0; b < BUCKETS; b++)
        ranges[b] = (eni_bucket_range){.lo = offsets[b], .hi = offsets[b] + counts[b]};
}

static void train(eni_client *client, eni_arena *arena, int32_t rank)
{
    bool is_mapped;
    float *param = eni_arena_at(arena, ENI_SLOT_PARAM, 0), *grad = eni_arena_at(arena, ENI_SLOT_GRAD, 0);
    for (uint32_t b = 0; b < BUCKETS; b++) {
        if (rank == 0) {
            for (uint64_t i = 0; i < counts[b]; i++)
                param[offsets[b] + i] = weight_at(offsets[b] + i);
            assert_int_equal(eni_client_call(client, b, ENI_SLOT_PARAM, ENI_SLOT_NONE,
                                             &(eni_header){.type = ENI_MSG_INIT, .what = EN_WEIGHTS}),
                             EN_OK);
            assert_int_equal(eni_client_wait(client, b), EN_OK);
        }
        assert_int_equal(eni_client_call(client, b, ENI_SLOT_NONE, ENI_SLOT_PARAM,
                                         &(eni_header){.type = ENI_MSG_SNAPSHOT, .what = EN_WEIGHTS}),
                         EN_OK);
        assert_int_equal(eni_client_wait(client, b), EN_OK);
    }
    assert_int_equal(eni_client_map_weights(client, &is_mapped), EN_OK);
    assert_int_equal(is_mapped, eni_client_is_shared(client));
    for (uint64_t t = 0; t < STEPS; t++) {
        for (uint32_t b = 0; b < BUCKETS; b++) {
            for (uint64_t i = 0; i < counts[b]; i++)
                grad[offsets[b] + i] = gradient_at(rank, t, offsets[b] + i);
            assert_int_equal(eni_client_call(client, b, ENI_SLOT_GRAD, ENI_SLOT_PARAM,
                                             &(eni_header){.type = ENI_MSG_CALL,
                                                           .kind = 1,
                                                           .what = EN_GRAD,
                                                           .nsamples = SAMPLES,
                                                           .covered = SAMPLES,
                                                           .step = t}),
                             EN_OK);
        }
        for (uint32_t b = 0; b < BUCKETS; b++)
            assert_int_equal(eni_client_wait(client, b), EN_OK);
    }
    assert_int_equal(eni_client_finished(client), EN_OK);
}

static void use_client(worker *w, eni_member *member, int64_t deadline)
{
    const eni_world_info *info = eni_member_world(member);
    eni_endpoints shards;
    eni_bucket_range ranges[BUCKETS];
    eni_buckets plan;
    eni_arena *arena;
    eni_net *net;
    eni_client *client;
    plan_buckets(&plan, ranges);
    const char *sharing = w->is_shared ? info->leader.host_id : NULL;
    assert_int_equal(eni_endpoints_find(&info->leader, info->epoch, sharing, &shards), EN_OK);
    assert_int_equal(eni_arena_open(ELEMENTS, ENI_ARENA_NSLOTS, 1, &arena), EN_OK);
    assert_int_equal(eni_net_open(1, &net), EN_OK);
    const eni_client_config config = {
        .net = net,
        .psd = &shards,
        .arena = arena,
        .buckets = &plan,
        .token = &w->server->token,
        .rank = info->rank,
        .incarnation = info->incarnation,
        .alive = alive,
        .user = member,
        .wake_fd = eni_member_fd(member),
        .join_deadline_ns = deadline,
    };
    assert_int_equal(eni_client_open(&config, &client), EN_OK);
    w->is_shared = eni_client_is_shared(client);
    train(client, arena, w->rank);
    memcpy(w->weights, eni_arena_at(arena, ENI_SLOT_PARAM, 0), sizeof w->weights);
    eni_client_close(client);
    eni_net_close(net);
    eni_arena_close(arena);
}

static void say_goodbye(worker *w, eni_member *member, int64_t deadline)
{
    eni_blobs blobs = {0};
    w->status = eni_member_gather(member, "result", "{}", 2, &blobs, deadline);
    if (w->status == EN_OK) {
        assert_int_equal(blobs.count, WORLD + 1);
        snprintf(w->report, sizeof w->report, "%.*s", (int)blobs.blob[WORLD].bytes,
                 (const char *)blobs.blob[WORLD].data);
        w->status = eni_member_bye(member, deadline);
    }
    eni_blobs_fini(&blobs);
}

static void *run_worker(void *user)
{
    worker *w = user;
    const int64_t deadline = eni_now_ns() + 20 * ENI_SECOND;
    eni_member *member;
    char host[ENI_HOST_MAX], host_id[ENI_HOST_ID_MAX];
    eni_host_info_name(host);
    eni_host_info_id(NULL, host_id);
    const eni_member_config config = {
        .leader = w->server->address,
        .token = w->server->token,
        .rank = w->rank,
        .nranks = WORLD,
        .host = host,
        .host_id = host_id,
        .key_values = good_key_values,
        .nkey_values = KEY_VALUES,
        .join_deadline_ns = deadline,
        .abort_fd = -1,
    };
    w->status = eni_member_open(&config, &member);
    if (w->status != EN_OK) return NULL;
    if (w->ending == LEAVE) {
        use_client(w, member, deadline);
        say_goodbye(w, member, deadline);
    } else if (w->ending == IGNORE) {
        w->status = eni_member_verdict(member, deadline);
    }
    eni_member_close(member); /* without a bye: a death */
    return NULL;
}

static void run_two(server *s, worker w[WORLD])
{
    for (int32_t r = 0; r < WORLD; r++) {
        w[r].server = s;
        w[r].rank = r;
        assert_int_equal(pthread_create(&w[r].thread, NULL, run_worker, &w[r]), 0);
    }
    for (int32_t r = 0; r < WORLD; r++)
        pthread_join(w[r].thread, NULL);
}

static int open_files(void)
{
    int n = 0;
    DIR *dir = opendir("/proc/self/fd");
    while (readdir(dir))
        n++;
    closedir(dir);
    return n;
}

/* ---- tests --------------------------------------------------------------------------------------------- */

static void check_report(const char *text, int is_shared, int shards)
{
    json_t *report = json_loads(text, 0, NULL);
    assert_non_null(report);
    assert_string_equal(json_string_value(json_object_get(report, "role")), "psd");
    assert_int_equal(json_integer_value(json_object_get(report, "shards")), shards);
    assert_int_equal(json_integer_value(json_object_get(report, "updates")), STEPS);
    assert_int_equal(json_integer_value(json_object_get(report, "samples_applied")), WORLD * STEPS * SAMPLES);
    assert_int_equal(json_integer_value(json_object_get(report, "samples_dropped")), 0);
    assert_int_equal(json_integer_value(json_object_get(report, "refused")), 0);
    const json_t *staleness = json_object_get(report, "staleness");
    assert_true(json_real_value(json_object_get(staleness, "mean")) == 0);
    const json_t *one = json_array_get(json_object_get(report, "per_worker"), 1);
    assert_int_equal(json_integer_value(json_object_get(one, "samples_applied")), STEPS * SAMPLES);
    const int64_t gradients = WORLD * STEPS * (700 + 5 + 64) * 4;
    const int64_t start = (700 + 5 + 64) * 4 * (1 + WORLD); /* INIT once, SNAPSHOT by both */
    assert_int_equal(json_integer_value(json_object_get(report, "payload_bytes")), 2 * gradients);
    assert_int_equal(json_integer_value(json_object_get(report, "payload_beside_steps")), start);
    if (is_shared)
        assert_int_equal(json_integer_value(json_object_get(report, "shm_bytes")), 2 * gradients + start);
    else
        assert_int_equal(json_integer_value(json_object_get(report, "shm_bytes")), 0);
    assert_true(json_integer_value(json_object_get(report, "wire_bytes")) >
                (is_shared ? 1000 : 2 * gradients));
    json_decref(report);
}

static void whole_run(const char *more, int is_shared, int shards)
{
    const int files = open_files();
    server *s = start_server(more);
    worker *w = calloc(WORLD, sizeof *w);
    float want[ELEMENTS];
    for (int r = 0; r < WORLD; r++)
        w[r].is_shared = is_shared;
    run_two(s, w);
    for (int r = 0; r < WORLD; r++)
        assert_int_equal(w[r].status, EN_OK);
    assert_int_equal(end_server(s), EN_OK);
    train_alone(WORLD, STEPS, want);
    for (int r = 0; r < WORLD; r++) {
        assert_int_equal(w[r].is_shared, is_shared);
        for (int b = 0; b < BUCKETS; b++)
            assert_memory_equal(w[r].weights + offsets[b], want + offsets[b], counts[b] * sizeof(float));
    }
    assert_string_equal(w[0].report, w[1].report);
    check_report(w[0].report, is_shared, shards);
    free(w);
    assert_int_equal(open_files(), files);
}

static void a_run_over_tcp_ends_with_the_right_bytes(void **state)
{
    (void)state;
    whole_run(NULL, 0, 1);
}

static void a_run_in_shared_memory_ends_with_the_same(void **state)
{
    (void)state;
    whole_run("--shards=3", 1, 3);
}

static void a_death_ends_psd_and_tells_the_others(void **state)
{
    (void)state;
    const int files = open_files();
    server *s = start_server(NULL);
    worker *w = calloc(WORLD, sizeof *w);
    w[0].ending = IGNORE;
    w[1].ending = VANISH;
    run_two(s, w);
    assert_int_equal(w[0].status, EN_EPEER);
    assert_int_equal(end_server(s), EN_EPEER);
    free(w);
    assert_int_equal(open_files(), files);
}

static void an_interrupt_ends_psd_cleanly(void **state)
{
    (void)state;
    const int files = open_files();
    server *s = start_server(NULL);
    const uint64_t one = 1;
    assert_int_equal(write(s->interrupt_fd, &one, sizeof one), sizeof one);
    assert_int_equal(end_server(s), EN_EINTR);
    assert_int_equal(open_files(), files);
}

static void other_options_than_psd_s_are_refused(void **state)
{
    (void)state;
    server *s = start_server("--strategy=ssp:bound=3");
    worker *w = calloc(WORLD, sizeof *w);
    run_two(s, w);
    assert_int_equal(w[0].status, EN_EMISMATCH);
    assert_int_equal(end_server(s), EN_EMISMATCH);
    free(w);
}

static void a_strategy_without_a_server_is_wrong_use(void **state)
{
    (void)state;
    char *argv[] = {"psd", "--listen=tcp://127.0.0.1:0", "--strategy=ring", "--world-size=2", "--quiet"};
    eni_config config;
    assert_int_equal(eni_config_parse(ENI_PSD, 5, argv, &config), EN_OK);
    assert_int_equal(eni_psd_run(&config, NULL, EN_BUILD_DIR "/plugins", -1, NULL), EN_EINVAL);
    eni_config_fini(&config);
}

int main(void)
{
    eni_log_set_sink(NULL, NULL);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_run_over_tcp_ends_with_the_right_bytes),
        cmocka_unit_test(a_run_in_shared_memory_ends_with_the_same),
        cmocka_unit_test(a_death_ends_psd_and_tells_the_others),
        cmocka_unit_test(an_interrupt_ends_psd_cleanly),
        cmocka_unit_test(other_options_than_psd_s_are_refused),
        cmocka_unit_test(a_strategy_without_a_server_is_wrong_use),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
