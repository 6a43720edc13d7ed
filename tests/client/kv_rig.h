/* kv_rig.h - programs that know entrain/client.h only, against a real psd: how a test starts and ends them.
 *
 * A rank is forked before the test has any thread. It fails by returning non-zero (REQUIRE), never by a
 * cmocka assertion, and ends at the latest by its alarm. In a build with AddressSanitizer it looks for leaks
 * before it ends. */
#ifndef TESTS_COMM_KV_RIG_H
#define TESTS_COMM_KV_RIG_H

#include <stdint.h>
#include <stdio.h>
#include <sys/types.h>

#include "entrain/client.h"
#include "tests/system/process.h"

enum { RANKS = 2, RANK_SECONDS = 60 };

/* What a rank is told; the errors and warnings of its client end up in `said`. */
typedef struct scene {
    char server[64];
    const char *strategy;
    uint32_t flags;
    int go[2]; /* a pipe from a rank to the test, or to another rank */
    char said[4096];
} scene;

typedef int (*rank_main)(scene *s, int rank);

#define REQUIRE(claim)                                                                                       \
    do {                                                                                                     \
        if (!(claim)) {                                                                                      \
            fprintf(stderr, "%s:%d: rank %d: not so: %s\nit said: %s\n", __FILE__, __LINE__, rank, #claim,   \
                    s->said);                                                                                \
            return 1;                                                                                        \
        }                                                                                                    \
    } while (0)

/* Overwrites the scene; psd listens on a port of its own and leaves its token in system_folder(). */
void start_psd(scene *s, process *psd, const char *strategy, int ranks, int shards);

pid_t start_rank(scene *s, rank_main main, int rank);

/* Its exit code, or 128 + the signal that ended it. */
int end_rank(pid_t pid);

/* A whole run: ranks 0 .. ranks - 1 (at most RANKS) end with 0, then psd with psd_code. */
void run_ranks(scene *s, process *psd, rank_main main, int ranks, int psd_code);

/* One word between processes. hear_go: 1 if it came in time. */
void open_go(scene *s);
void close_go(const scene *s);
void say_go(const scene *s);
int hear_go(const scene *s);

/* Three tensors: w (5, 7), b (3), s (a number); all start with -8, -7, .. */
enum { W, B, S, TENSORS };
extern const uint64_t counts[TENSORS];
float initial_at(uint64_t i);

void declare(en_client_tensor tensors[TENSORS]);
en_client_options options_of(scene *s, int rank, int ranks, const en_client_tensor *tensors);
en_status open_rank(scene *s, int rank, int ranks, en_client **client);

#endif
