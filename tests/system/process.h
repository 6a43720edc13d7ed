/* process.h - real processes under test: start them, wait for what they do, check that nothing of them is
 * left.
 *
 * A test program runs system_main(), which makes a folder for all files of the processes (their token files
 * too: it is their XDG_RUNTIME_DIR) and removes it at the end. The test adopts orphans, so
 * process_nobody_left() knows of every process that descends from it. Each wait is for a condition, with a
 * deadline; a deadline that passes fails the test and shows the output of the process. */
#ifndef TESTS_SYSTEM_PROCESS_H
#define TESTS_SYSTEM_PROCESS_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

/* cmocka.h wants these before it. */
#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

/* Sanitizers slow everything down: bounds in seconds hold without them. */
#if defined(__SANITIZE_THREAD__)
#define SLOWNESS 10
#elif defined(__SANITIZE_ADDRESS__)
#define SLOWNESS 4
#else
#define SLOWNESS 1
#endif

typedef struct process {
    char name[24];
    pid_t pid;
    int pidfd;               /* -1: ended and waited for */
    char out[128], err[128]; /* where its stdout and stderr go */
} process;

/* Runs a group of tests in a fresh folder; the exit code of the program. */
#define system_main(tests) system_run(#tests, tests, sizeof(tests) / sizeof *(tests))
int system_run(const char *name, const struct CMUnitTest *tests, size_t n);

/* The first part of system_run(), done once: the folder, the environment. 0: the folder cannot be made. */
int system_begin(void);

/* In a child of the test: the folder is a new one below, and the child adopts its own orphans. */
void system_enter(const char *name);

/* Before system_main: programs load their plugins from here, not from the build folder's plugins/. */
void system_use_plugins(const char *plugin_folder);

/* The folder, without a slash at the end and without spaces. */
const char *system_folder(void);

/* Prints "SKIP: ..." and ends the program with 77. */
_Noreturn void system_skip(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* Prints a "PROMISE ..." line: a promise, and its measured value. */
void promise(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* Starts a program of the build folder ("entrain") or a path. `env` is "KEY=VALUE KEY=VALUE" or NULL. The
 * arguments are one text, separated by single spaces. */
void process_start(process *p, const char *program, const char *env, const char *format, ...)
    __attribute__((format(printf, 4, 5)));

/* Its exit code, or 128 + the signal that ended it. */
int process_wait(process *p, double seconds);

void process_kill(const process *p, int signal_number);

/* Its output so far; valid until the next call for the same stream. */
const char *process_out(const process *p);
const char *process_err(const process *p);

/* The number of lines of its stderr that contain `first` and `second` ("" is in every line). */
int process_says(const process *p, const char *first, const char *second);

/* The word that each line about a failed process has (control.h: eni_death_text). */
#define SAYS_DIED "died"

/* Whether `text` has `word` (a flag, a value, a name), and not as a part of a longer word or number. */
int text_has(const char *text, const char *word);

/* A line of the log without time, level and process in front; any other line as it is. */
const char *log_message(const char *line);

/* The number of lines of its stderr with these words (text_has) in their messages; "" is in every line. */
int process_names(const process *p, const char *first, const char *second, const char *third);

/* Blocks until `p` has written a whole line, to stdout or stderr, that contains `text`; the line, without the
 * newline, valid until the next call. Fails the test if `p` ends before. */
const char *wait_for_line(const process *p, const char *text, double seconds);

/* The child of `parent` that has `word` as an argument, or whose program's name is `word`; 0 if none. */
pid_t process_child(pid_t parent, const char *word);

/* All processes that were started, and theirs, have ended within `seconds`. */
void process_nobody_left(double seconds);

/* The number of abstract sockets called "entrain-..." that this process holds; their names, each ended by a
 * newline. */
int process_sockets(pid_t pid, char *names_out, size_t bytes);
/* The number of these names that still exist. */
int sockets_left(const char *names);

/* Files of entrain in /dev/shm. */
int shared_memory_left(void);

/* Files in the folder below `name` ("entrain": token files); 0 if it does not exist. */
int files_left(const char *name);

/* A port that is free, and that no other test takes while this process lives. */
int free_port(void);

/* Bounds in seconds hold for a machine that does nothing else. So tests wait for GUARD seconds, and judge the
 * time of a stopwatch: the time that passed, less the CPU time that others took meanwhile (processes that do
 * not descend from the test, and other guests of the host). On a quiet machine that is 0, and the bound is as
 * strict as it reads. */
enum { GUARD = 60 };
typedef struct stopwatch {
    double begin, others_before, others;
} stopwatch;
stopwatch stopwatch_start(void);
/* The seconds since then; may be called again. */
double stopwatch_read(stopwatch *watch);
/* Fails the test if the last reading is beyond the bound and others are not the cause. */
void stopwatch_expect(const stopwatch *watch, double took, double bound, const char *what);

/* The monotonic clock, in seconds; and the time left until a deadline, for poll(): at least 1 ms before it, 0
 * after. */
double now_seconds(void);
int ms_until(double deadline);

#endif
