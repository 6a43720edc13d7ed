/* test_servers.c - several servers: their shards reach all ranks, their reports reach the result, their
 * deaths have a number, and one that comes back is another generation. */
#include <poll.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "core/clock.h"
#include "crew.h"

enum { RANKS = 2, SERVERS = 3, FIRST = RANKS }; /* hand FIRST + k - 1 is server k */

typedef struct server {
    char key[16], value[32], word[16];
    eni_key_value shard;
    atomic_int nserved;
    uint32_t epoch;
    bool has_right_world;
} server;

static en_status serve(void *user, const eni_world_info *world, const eni_key_value **member_data_out,
                       size_t *n_out)
{
    server *s = user;
    s->has_right_world = world->nranks == RANKS && world->nservers == SERVERS && world->peers[1].rank == 1 &&
                         strcmp(eni_key_value_find(world->key_values, world->nkey_values, "lr"), "0.1") == 0;
    s->epoch = world->epoch;
    s->shard = (eni_key_value){s->key, s->value};
    *member_data_out = &s->shard;
    *n_out = 1;
    atomic_fetch_add(&s->nserved, 1);
    return EN_OK;
}

static void add_word(void *user, const char *tag, eni_blob *own_out)
{
    server *s = user;
    if (strcmp(tag, "result") == 0) *own_out = (eni_blob){(const uint8_t *)s->word, strlen(s->word)};
}

static const eni_key_value shard0 = {"shard.0", "first"};

static en_status lead(void *user, const eni_world_info *world, eni_terms *terms)
{
    (void)user;
    (void)world;
    terms->member_data = &shard0;
    terms->nmember_data = 1;
    return EN_OK;
}

/* psd 0 folds all reports into its own. */
static void fold(void *user, const char *tag, const eni_blob *blobs, size_t count, eni_blob *own_out)
{
    char *all = user;
    size_t at = 0;
    if (strcmp(tag, "result") == 0) assert_int_equal(count, RANKS + SERVERS - 1);
    for (size_t i = RANKS; i < count; i++) {
        memcpy(all + at, blobs[i].data, blobs[i].bytes);
        at += blobs[i].bytes;
    }
    *own_out = (eni_blob){(const uint8_t *)all, at};
}

static void start(crew *c, server servers[SERVERS], char *words)
{
    static const eni_key_value lr = {"lr", "0.1"};
    crew_init(c, RANKS);
    c->config.nservers = SERVERS;
    c->config.on_world = lead;
    c->config.on_gather = fold;
    c->config.user = words;
    for (int r = 0; r < RANKS; r++) {
        c->hand[r].config.key_values = &lr;
        c->hand[r].config.nkey_values = 1;
    }
    for (int k = 1; k < SERVERS; k++) {
        server *s = &servers[k];
        eni_member_config *config = &c->hand[FIRST + k - 1].config;
        memset(s, 0, sizeof *s);
        snprintf(s->key, sizeof s->key, "shard.%d", k);
        snprintf(s->value, sizeof s->value, "of server %d", k);
        snprintf(s->word, sizeof s->word, "[%d]", k);
        config->server = k;
        config->nservers = SERVERS;
        config->rank = -1;
        config->on_serve = serve;
        config->on_ask = add_word;
        config->user = s;
    }
}

static void join(crew *c)
{
    assert_true(crew_start(c));
    crew_join(c, 0, RANKS + SERVERS - 1);
    for (int h = 0; h < RANKS + SERVERS - 1; h++)
        assert_int_equal(c->hand[h].status, EN_OK);
}

static const char *shard(const eni_peer *leader, const char *key)
{
    const char *value = eni_key_value_find(leader->member_data, leader->nmember_data, key);
    return value == NULL ? "none" : value;
}

static void *gather(void *argument)
{
    crew_hand *hand = argument;
    hand->status = eni_member_gather(hand->member, "result", NULL, 0, NULL, crew_soon());
    return NULL;
}

static void all_shards_and_words_are_merged(void **state)
{
    (void)state;
    crew c;
    char words[64];
    server servers[SERVERS];
    eni_blobs blobs;
    start(&c, servers, words);
    join(&c);
    for (int r = 0; r < RANKS; r++) {
        const eni_world_info *world = eni_member_world(c.hand[r].member);
        assert_int_equal(world->nservers, SERVERS);
        assert_int_equal(world->leader.nmember_data, SERVERS);
        assert_string_equal(shard(&world->leader, "shard.0"), "first");
        assert_string_equal(shard(&world->leader, "shard.1"), "of server 1");
        assert_string_equal(shard(&world->leader, "shard.2"), "of server 2");
    }
    for (int k = 1; k < SERVERS; k++) {
        assert_true(servers[k].has_right_world);
        assert_int_equal(servers[k].epoch, 1);
        assert_int_equal(eni_member_world(c.hand[FIRST + k - 1].member)->rank, -1 - k);
    }
    pthread_create(&c.hand[1].thread, NULL, gather, &c.hand[1]);
    assert_int_equal(eni_member_gather(c.hand[0].member, "result", NULL, 0, &blobs, crew_soon()), EN_OK);
    pthread_join(c.hand[1].thread, NULL);
    assert_int_equal(c.hand[1].status, EN_OK);
    assert_int_equal(blobs.count, RANKS + 1);
    assert_int_equal(blobs.blob[RANKS].bytes, 6);
    assert_memory_equal(blobs.blob[RANKS].data, "[1][2]", 6);
    eni_blobs_fini(&blobs);
    for (int r = 0; r < RANKS; r++)
        assert_int_equal(eni_member_bye(c.hand[r].member, crew_soon()), EN_OK);
    for (int k = 1; k < SERVERS; k++)
        assert_int_equal(eni_member_await_end(c.hand[FIRST + k - 1].member, crew_soon()), EN_OK);
    assert_int_equal(eni_leader_wait(c.leader, crew_soon(), -1), EN_OK);
    crew_fini(&c);
}

static void a_servers_death_has_its_number(void **state)
{
    (void)state;
    crew c;
    char words[64];
    server servers[SERVERS];
    start(&c, servers, words);
    join(&c);
    eni_member_close(c.hand[FIRST + 1].member);
    c.hand[FIRST + 1].member = NULL;
    assert_int_equal(eni_member_verdict(c.hand[0].member, crew_soon()), EN_EPEER);
    assert_true(eni_member_outcome(c.hand[0].member).has_death);
    const eni_death death = eni_member_outcome(c.hand[0].member).death;
    assert_int_equal(death.rank, -3);
    assert_true(crew_logged("the run is broken*psd 2 (pid "));
    assert_int_equal(eni_member_await_end(c.hand[FIRST].member, crew_soon()), EN_EPEER);
    crew_fini(&c);
}

static void a_server_may_come_back(void **state)
{
    (void)state;
    crew c;
    char words[64];
    server servers[SERVERS];
    uint32_t epoch;
    start(&c, servers, words);
    c.config.server_timeout_ns = 10 * ENI_SECOND;
    join(&c);
    crew_hand *second = &c.hand[FIRST + 1];
    eni_member_close(second->member);
    second->member = NULL;
    assert_true(crew_await_logged("psd *up to 10 s"));
    snprintf(servers[2].value, sizeof servers[2].value, "elsewhere");
    crew_join(&c, FIRST + 1, 1);
    assert_int_equal(second->status, EN_OK);
    assert_int_equal(atomic_load(&servers[2].nserved), 2);
    assert_true(servers[2].has_right_world);
    for (int r = 0; r < RANKS; r++) {
        for (int64_t soon = crew_soon(); eni_member_generation(c.hand[r].member) == 0 && eni_now_ns() < soon;)
            poll(NULL, 0, 1);
        assert_int_equal(eni_member_generation(c.hand[r].member), 1);
        const eni_peer *leader = eni_member_leader(c.hand[r].member, &epoch);
        assert_int_equal(epoch, 1);
        assert_string_equal(shard(leader, "shard.1"), "of server 1");
        assert_string_equal(shard(leader, "shard.2"), "elsewhere");
        assert_int_equal(eni_member_status(c.hand[r].member), EN_OK);
    }
    for (int r = 0; r < RANKS; r++)
        assert_int_equal(eni_member_bye(c.hand[r].member, crew_soon()), EN_OK);
    assert_int_equal(eni_member_await_end(second->member, crew_soon()), EN_OK);
    crew_fini(&c);
}

static atomic_bool may_serve;

static en_status serve_late(void *user, const eni_world_info *world, const eni_key_value **member_data_out,
                            size_t *n_out)
{
    for (int64_t deadline = crew_soon(); !atomic_load(&may_serve) && eni_now_ns() < deadline;)
        poll(NULL, 0, 1);
    return serve(user, world, member_data_out, n_out);
}

static void *open_hand(void *argument)
{
    crew_hand *hand = argument;
    hand->status = eni_member_open(&hand->config, &hand->member);
    return NULL;
}

/* Rejoining is not enough: the shards must open, too. */
static void a_server_that_comes_back_has_to_serve(void **state)
{
    (void)state;
    crew c;
    char words[64];
    server servers[SERVERS];
    start(&c, servers, words);
    c.config.server_timeout_ns = 300 * ENI_MILLI;
    join(&c);
    crew_hand *second = &c.hand[FIRST + 1];
    eni_member_close(second->member);
    second->member = NULL;
    atomic_store(&may_serve, false);
    second->config.on_serve = serve_late;
    pthread_create(&second->thread, NULL, open_hand, second);
    assert_int_equal(eni_member_verdict(c.hand[0].member, crew_soon()), EN_EPEER);
    assert_true(crew_await_number("come back within ") >= 0.3);
    atomic_store(&may_serve, true);
    pthread_join(second->thread, NULL);
    assert_int_not_equal(second->status, EN_OK);
    crew_fini(&c);
}

/* Servers are informed of it, and asked for their report as usual. */
static void an_early_end_is_no_servers_death(void **state)
{
    (void)state;
    crew c;
    char words[64], why[ENI_REASON_MAX];
    server servers[SERVERS];
    eni_blobs blobs;
    start(&c, servers, words);
    join(&c);
    eni_member_stop(c.hand[0].member, "Ctrl-C");
    for (int r = 0; r < RANKS; r++) {
        for (int64_t deadline = crew_soon();
             eni_now_ns() < deadline && eni_member_stop_step(c.hand[r].member) == ENI_STEP_NEVER;)
            poll(NULL, 0, 1);
        assert_int_equal(eni_member_enter(c.hand[r].member, 0), EN_ESTOP);
    }
    pthread_create(&c.hand[1].thread, NULL, gather, &c.hand[1]);
    assert_int_equal(eni_member_gather(c.hand[0].member, "result", NULL, 0, &blobs, crew_soon()), EN_OK);
    pthread_join(c.hand[1].thread, NULL);
    assert_memory_equal(blobs.blob[RANKS].data, "[1][2]", 6);
    eni_blobs_fini(&blobs);
    for (int r = 0; r < RANKS; r++)
        assert_int_equal(eni_member_bye(c.hand[r].member, crew_soon()), EN_OK);
    for (int k = 1; k < SERVERS; k++) {
        assert_int_equal(eni_member_await_end(c.hand[FIRST + k - 1].member, crew_soon()), EN_OK);
        snprintf(why, sizeof why, "%s", eni_member_outcome(c.hand[FIRST + k - 1].member).stop_why);
        assert_true(why[0] != '\0');
    }
    assert_int_equal(eni_leader_wait(c.leader, crew_soon(), -1), EN_OK);
    crew_fini(&c);
}

static void a_missing_server_and_wrong_numbers_are_told(void **state)
{
    (void)state;
    crew c;
    char words[64];
    server servers[SERVERS];
    start(&c, servers, words);
    c.config.join_ns = 2 * ENI_SECOND;
    c.hand[FIRST].config.nservers = 2;
    assert_true(crew_start(&c));
    crew_join(&c, 0, RANKS + 1);
    assert_int_equal(c.hand[0].status, EN_ETIMEOUT);
    assert_int_equal(c.hand[FIRST].status, EN_EINVAL);
    assert_true(crew_logged("psd 1 *--servers=2*leader 3"));
    assert_true(crew_logged("2 of 2 ranks*missing psd 1*missing psd 2*2 s"));
    crew_fini(&c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(all_shards_and_words_are_merged),
                                       cmocka_unit_test(a_servers_death_has_its_number),
                                       cmocka_unit_test(a_server_may_come_back),
                                       cmocka_unit_test(a_server_that_comes_back_has_to_serve),
                                       cmocka_unit_test(an_early_end_is_no_servers_death),
                                       cmocka_unit_test(a_missing_server_and_wrong_numbers_are_told)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
