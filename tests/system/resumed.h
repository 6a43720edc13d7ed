/* resumed.h - runs that are killed and resumed: the contents of their folders, and their results. */
#ifndef TESTS_SYSTEM_RESUMED_H
#define TESTS_SYSTEM_RESUMED_H

#include "tests/system/run.h"

/* Momentum, Nesterov and a cosine rate make every step depend on all before it; 103 samples leave a ragged
 * step in each of four epochs. */
#define OF_ANY_MODEL      "--device=ref " MADE_UP " --epochs=4 --batch-size=4 --lr-schedule=cosine "
#define WITHOUT_OPTIMIZER OF_ANY_MODEL "--model=mlp "
#define NESTEROV          "--lr=0.02 --momentum=0.9 --nesterov --weight-decay=0.0005"
#define COMMON            WITHOUT_OPTIMIZER NESTEROV
enum { SAMPLES = 412, EVERY = 8 }; /* of the run; between checkpoints: one at every step of 2 x 4 */

/* A folder of its own for the --out of a run. */
void folder_for(char out[160], const char *name);

/* list_checkpoints: the samples of a run's checkpoints, the newest first; their number. newest_checkpoint: 0
 * without one. temporary_files: the number of files that writers have not finished. */
int list_checkpoints(const char *out, uint64_t found[16]);
uint64_t newest_checkpoint(const char *out);
void path_of_newest(const char *out, char path[256]);
int temporary_files(const char *out);

/* Starts `entrain run` with these flags. */
void begin_run(process *p, const char *out, const char *flags);

/* SIGKILL for the launcher and all its children, psd too: none can say goodbye. */
void kill_everything(process *p);

/* Blocks until there is a checkpoint of at least that many samples; 0: the run ended before. */
int wait_for_checkpoint(const process *p, const char *out, uint64_t samples);

/* Its result.json; the caller releases it. */
json_t *result_of(const char *out);

/* Runs to the end; its hashes (run.h) must be `expected`, and nothing unfinished may be left. */
json_t *finish_run(const char *out, const char *expected, const char *flags);

/* Rank 0 sleeps 24 times as long as it computes, so that a run cannot end before the test kills it, even
 * where the test is slow to look. Where ranks do not wait for each other, each needs its own. */
#define SLOWLY "--straggler=0:25 "

/* A run with these flags, slowly, that was killed at about `samples`. */
void half_way(char out[160], const char *flags, uint64_t samples);

/* The hashes that a run must end with that was restarted with other numbers of workers: those of runs by hand
 * with these flags, of workers[i] workers up to the checkpoint paths[i], and of the last number to the
 * end. */
void hashes_by_hand(const char *flags, const int *workers, const json_t *paths, char hashes_out[HASHES]);

/* Compiles a source file of the project into a plugin; ends the program with 77 without a cc. */
void build_plugin(const char *source, const char *plugin_file);

#endif
