/* outer.h - shared by tests of outer launchers and of several hosts. */
#ifndef TESTS_SYSTEM_OUTER_H
#define TESTS_SYSTEM_OUTER_H

#include "tests/system/run.h"

/* A job of half a second whose bytes are the same everywhere. */
#define OUTER_JOB                                                                                            \
    "--device=ref --model=mlp --data=synthetic --limit-train-samples=103 --limit-test-samples=64 "           \
    "--steps=50 --batch-size=4 --lr=0.02 --momentum=0.9 --nesterov"
#define OUTER_ALONE "--quiet --threads=1"

/* The path of a program that is installed (PATH, sbin, or beside the Python of the tests), else NULL; valid
 * until the next call but seven. */
const char *outer_tool(const char *name);

/* Skips the test program when it is not installed; `package` is what to install. */
const char *outer_need(const char *name, const char *package);

/* Whether torchrun, which is installed, starts programs at all: that of Debian 12 (PyTorch 1.13 on
 * Python 3.11) fails by itself before it does. */
int outer_torchrun_works(void);

/* A port that is free, and the next one too; see free_port(). */
int outer_port(void);

/* A file with a job token, which a user makes once and copies to every host. Valid until the next call. */
const char *outer_token_file(void);

/* A new folder's path for --out; valid until the next call but seven. */
const char *outer_folder(void);

/* Blocks until this worker, which is rank 0, leads its run: until its status file is there (runtime/control/runs.h). */
void outer_await_leader(const process *zero);

/* Fails the test with all that it said unless it ends with `code` in time. */
void outer_expect_end(process *p, int code);

/* Fails the test unless result.json in `folder` has these weights. */
void outer_expect_hash(const char *folder, const char *expected);

/* ---- network namespaces as hosts: a bridge with a cable to each; only for root ---- */

enum { OUTER_HOSTS_MAX = 4 };

/* Makes hosts 0 .. n-1, once for the test program, which removes them at its end. Skips the program, with the
 * reason, where that is not possible. */
void outer_make_hosts(int n);

/* Its address on the bridge. */
const char *outer_host_address(int host);

/* Starts a program of the build folder, or a path, on a host; the rest as process_start. */
void outer_start_on(process *p, int host, const char *program, const char *format, ...)
    __attribute__((format(printf, 4, 5)));

/* Unplugs (is_up 0) or plugs in the host's cable. */
void outer_cable(int host, int is_up);

#endif
