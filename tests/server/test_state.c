/* test_state.c - a folder of states: two generations, every flipped bit and every truncation found; the
 * journal. */
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "core/log.h"
#include "core/memory.h"
#include "runtime/net/process.h"
#include "server/state.h"

static char folder[64];
static eni_state *state;

static int open_folder(void **unused)
{
    (void)unused;
    strcpy(folder, "/tmp/entrain-test-XXXXXX");
    if (!mkdtemp(folder)) return -1;
    return eni_state_open(folder, &state) == EN_OK ? 0 : -1;
}

static int close_folder(void **unused)
{
    (void)unused;
    if (state) eni_state_clear(state);
    eni_state_close(state);
    state = NULL;
    return rmdir(folder);
}

static const eni_state_stamp shard3 = {.kind = ENI_STATE_SHARD, .shard = 3, .nshards = 4, .run = 77};

static void put(uint64_t generation, const char *text)
{
    eni_state_stamp stamp = shard3;
    stamp.generation = generation;
    assert_int_equal(eni_state_write(state, &stamp, text, strlen(text)), EN_OK);
}

/* The generation that is found, or 0; its text is `want`. */
static uint64_t newest(const char *want)
{
    eni_state_stamp stamp;
    uint8_t *bytes;
    size_t length;
    if (eni_state_read(state, ENI_STATE_SHARD, 3, &stamp, &bytes, &length) != EN_OK) return 0;
    assert_int_equal(stamp.run, 77);
    assert_int_equal(stamp.nshards, 4);
    assert_int_equal(length, strlen(want));
    assert_memory_equal(bytes, want, length);
    eni_free(bytes);
    return stamp.generation;
}

static void path_of(const char *name, char path[128])
{
    snprintf(path, 128, "%s/%s", folder, name);
}

static size_t read_file(const char *name, uint8_t *bytes, size_t room)
{
    char path[128];
    path_of(name, path);
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    const size_t n = fread(bytes, 1, room, file);
    fclose(file);
    return n;
}

static void write_file(const char *name, const uint8_t *bytes, size_t n)
{
    char path[128];
    path_of(name, path);
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(bytes, 1, n, file), n);
    fclose(file);
}

/* ---- tests --------------------------------------------------------------------------------------------- */

static void the_newest_of_two_generations_is_found(void **unused)
{
    (void)unused;
    assert_int_equal(newest(""), 0);
    put(1, "one");
    assert_int_equal(newest("one"), 1);
    put(2, "two");
    assert_int_equal(newest("two"), 2);
    put(3, "three");
    assert_int_equal(newest("three"), 3);
    char path[128];
    path_of("shard-3.1", path);
    assert_int_equal(unlink(path), 0); /* generation 3: 2 is still there */
    assert_int_equal(newest("two"), 2);
}

static void every_flipped_bit_and_every_cut_falls_back(void **unused)
{
    (void)unused;
    uint8_t bytes[512];
    put(1, "older");
    put(2, "newer, and a little longer");
    const size_t n = read_file("shard-3.0", bytes, sizeof bytes);
    assert_true(n > 64 && n < sizeof bytes);
    for (size_t bit = 0; bit < 8 * n; bit++) {
        bytes[bit / 8] ^= (uint8_t)(1u << bit % 8);
        write_file("shard-3.0", bytes, n);
        assert_int_equal(newest("older"), 1);
        bytes[bit / 8] ^= (uint8_t)(1u << bit % 8);
    }
    for (size_t cut = 0; cut < n; cut++) {
        write_file("shard-3.0", bytes, cut);
        assert_int_equal(newest("older"), 1);
    }
    bytes[n] = 0;
    write_file("shard-3.0", bytes, n + 1);
    assert_int_equal(newest("older"), 1);
    write_file("shard-3.0", bytes, n);
    assert_int_equal(newest("newer, and a little longer"), 2);
}

static void both_damaged_is_told_from_none(void **unused)
{
    (void)unused;
    eni_state_stamp stamp;
    uint8_t *bytes;
    size_t length;
    put(1, "one");
    put(2, "two");
    write_file("shard-3.0", (const uint8_t *)"x", 1);
    write_file("shard-3.1", (const uint8_t *)"x", 1);
    assert_int_equal(eni_state_read(state, ENI_STATE_SHARD, 3, &stamp, &bytes, &length), EN_EFORMAT);
    assert_int_equal(eni_state_read(state, ENI_STATE_SHARD, 2, &stamp, &bytes, &length), EN_ENOENT);
}

static char said[1024];

static void listen_in(void *user, int level, const char *subsystem, const char *text)
{
    (void)user, (void)level, (void)subsystem;
    eni_text_add(said, sizeof said, "%s\n", text);
}

static void the_state_of_an_older_psd_is_refused(void **unused)
{
    (void)unused;
    enum { VERSION_AT = 8 };
    uint8_t bytes[512];
    put(1, "one");
    const size_t n = read_file("shard-3.1", bytes, sizeof bytes);
    assert_int_equal(bytes[VERSION_AT], 2);
    bytes[VERSION_AT] = 1;
    write_file("shard-3.1", bytes, n);
    said[0] = 0;
    eni_log_set_level(ENI_LOG_INFO);
    eni_log_set_sink(listen_in, NULL);
    assert_int_equal(newest(""), 0);
    eni_log_set_sink(NULL, NULL);
    eni_log_set_level(-1);
    assert_non_null(strstr(said, "shard-3.1: "));
    assert_non_null(strstr(said, "another version"));
    assert_non_null(strstr(said, "shard-3.* "));
}

/* Nobody may ever write into it. */
static void a_pipe_in_place_of_a_file_is_not_waited_for(void **unused)
{
    (void)unused;
    char path[128];
    put(1, "one");
    path_of("shard-3.0", path);
    assert_int_equal(mkfifo(path, 0600), 0);
    assert_int_equal(newest("one"), 1);
}

/* A file left by a kill between write and rename. */
static void a_file_beside_its_place_is_not_looked_at(void **unused)
{
    (void)unused;
    put(1, "one");
    write_file("shard-3.tmp", (const uint8_t *)"half", 4);
    assert_int_equal(newest("one"), 1);
    put(2, "two");
    assert_int_equal(newest("two"), 2);
}

static void a_second_psd_is_kept_out(void **unused)
{
    (void)unused;
    eni_state *second = NULL;
    assert_int_equal(eni_state_open(folder, &second), EN_EDENIED);
    assert_null(second);
}

static void a_folder_that_others_may_write_to_is_refused(void **unused)
{
    (void)unused;
    eni_state_close(state);
    state = NULL;
    assert_int_equal(chmod(folder, 0777), 0);
    assert_int_equal(eni_state_open(folder, &state), EN_EDENIED);
    assert_int_equal(chmod(folder, 0700), 0);
}

static void only_own_files_are_taken_away(void **unused)
{
    (void)unused;
    char path[128];
    put(1, "one");
    write_file("thesis.tex", (const uint8_t *)"x", 1);
    eni_state_clear(state);
    assert_int_equal(newest(""), 0);
    path_of("thesis.tex", path);
    assert_int_equal(unlink(path), 0);
}

/* ---- the journal --------------------------------------------------------------------------------------- */

static void fold(const eni_journal *journal, eni_revived_rank rank[2], eni_revived *revived)
{
    memset(rank, 0, 2 * sizeof *rank);
    *revived = (eni_revived){.rank = rank, .stop_step = ENI_STEP_NEVER};
    eni_journal_fold(journal, revived);
}

static void what_was_said_is_known_again(void **unused)
{
    (void)unused;
    eni_journal *journal;
    eni_revived revived;
    eni_revived_rank rank[2];
    assert_int_equal(eni_journal_open(state, 77, 2, 1, &journal), EN_OK);
    for (uint64_t i = 0; i < 9; i++)
        eni_journal_write(journal, &(eni_entry){ENI_ENTRY_CLAIM, (int32_t)(i % 2), i / 2 + 1, i});
    fold(journal, rank, &revived);
    assert_int_equal(revived.claimed, 9);
    assert_int_equal(rank[0].claim_number, 5);
    assert_int_equal(rank[0].claim_index, 8);
    assert_int_equal(rank[1].claim_number, 4);
    assert_int_equal(rank[1].claim_index, 7);
    /* Used up for both: the claims handed out before must be kept. */
    for (int32_t r = 0; r < 2; r++)
        eni_journal_write(journal, &(eni_entry){ENI_ENTRY_CLAIM, r, rank[r].claim_number + 1, UINT64_MAX});
    eni_journal_write(journal, &(eni_entry){ENI_ENTRY_LEFT, 1, 0, 0});
    eni_journal_write(journal, &(eni_entry){ENI_ENTRY_BYE, 0, 0, 0});
    eni_journal_write(journal, &(eni_entry){ENI_ENTRY_LEAVE, 0, 0, 0});
    eni_journal_write(journal, &(eni_entry){ENI_ENTRY_CAME, 1, 55, 4121});
    eni_journal_write(journal, &(eni_entry){ENI_ENTRY_TRAIN, 0, 0, 17});
    eni_journal_write(journal, &(eni_entry){ENI_ENTRY_STOP, -1, 0, 41});
    eni_journal_close(journal);
    assert_int_equal(eni_journal_open(state, 77, 2, 0, &journal), EN_OK);
    fold(journal, rank, &revived);
    assert_int_equal(revived.claimed, 9);
    assert_true(rank[0].claim_index == UINT64_MAX && rank[1].claim_index == UINT64_MAX);
    assert_true(rank[1].has_left && !rank[0].has_left && rank[0].has_said_bye && !rank[1].has_said_bye);
    assert_true(rank[0].is_leaving && !rank[1].is_leaving && rank[1].came == 4121 && rank[1].born == 55);
    assert_int_equal(revived.training_ns, 17);
    assert_int_equal(revived.stop_step, 41);
    eni_journal_close(journal);
}

static void another_run_s_journal_is_refused(void **unused)
{
    (void)unused;
    eni_journal *journal;
    assert_int_equal(eni_journal_open(state, 77, 2, 0, &journal), EN_ENOENT);
    assert_int_equal(eni_journal_open(state, 77, 2, 1, &journal), EN_OK);
    eni_journal_close(journal);
    assert_int_equal(eni_journal_open(state, 78, 2, 0, &journal), EN_EFORMAT);
    assert_int_equal(eni_journal_open(state, 77, 3, 0, &journal), EN_EFORMAT);
}

/* ---- the run ------------------------------------------------------------------------------------------- */

static void a_run_is_read_back(void **unused)
{
    (void)unused;
    const eni_key_value key_values[] = {{"lr", "0.1"}, {"net", ""}},
                        member_data[] = {{"data", "tcp://127.0.0.1:1"}};
    const uint64_t born = eni_process_born(getpid());
    const eni_peer peers[] = {{.rank = 0, .pid = getpid(), .born = born, .host = "a", .host_id = "A"},
                              /* not that process: one that is not visible, in another pid namespace */
                              {.rank = 1,
                               .pid = getpid(),
                               .born = born + 1,
                               .host = "b",
                               .host_id = "B",
                               .member_data = member_data,
                               .nmember_data = 1},
                              {.rank = 2, .host = "", .host_id = ""}}; /* never joined */
    const eni_world_info world = {.rank = -1,
                                  .nranks = 3,
                                  .epoch = 3,
                                  .incarnation = UINT64_C(0xfedcba9876543210),
                                  .peers = peers,
                                  .key_values = key_values,
                                  .nkey_values = 2};
    eni_served attributes = {"ps-sync", "1.2", 6, {{1, 2, 3}}};
    eni_run_file *file;
    assert_int_equal(eni_run_file_read(state, &file), EN_ENOENT);
    assert_int_equal(eni_run_file_write(state, &attributes, &world), EN_OK);
    assert_int_equal(eni_run_file_read(state, &file), EN_OK);
    assert_string_equal(file->attributes.strategy, "ps-sync");
    assert_int_equal(file->attributes.nshards, 6);
    assert_true(eni_token_equal(&file->attributes.token, &attributes.token));
    assert_int_equal(file->revived.epoch, 3);
    assert_true(file->revived.incarnation == world.incarnation);
    assert_int_equal(file->revived.nkey_values, 2);
    assert_string_equal(eni_key_value_find(file->revived.key_values, file->revived.nkey_values, "lr"), "0.1");
    assert_int_equal(file->revived.peers[0].born, born);
    assert_int_equal(file->revived.peers[1].born, 0);
    assert_string_equal(file->revived.peers[1].host_id, "B");
    assert_string_equal(file->revived.peers[2].host_id, "");
    assert_string_equal(
        eni_key_value_find(file->revived.peers[1].member_data, file->revived.peers[1].nmember_data, "data"),
        "tcp://127.0.0.1:1");
    eni_run_file_free(file);
}

#define in_folder(test) cmocka_unit_test_setup_teardown(test, open_folder, close_folder)

int main(void)
{
    eni_log_set_level(-1);
    const struct CMUnitTest tests[] = {
        in_folder(the_newest_of_two_generations_is_found),
        in_folder(every_flipped_bit_and_every_cut_falls_back),
        in_folder(both_damaged_is_told_from_none),
        in_folder(the_state_of_an_older_psd_is_refused),
        in_folder(a_pipe_in_place_of_a_file_is_not_waited_for),
        in_folder(a_file_beside_its_place_is_not_looked_at),
        in_folder(a_second_psd_is_kept_out),
        in_folder(a_folder_that_others_may_write_to_is_refused),
        in_folder(only_own_files_are_taken_away),
        in_folder(what_was_said_is_known_again),
        in_folder(another_run_s_journal_is_refused),
        in_folder(a_run_is_read_back),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
