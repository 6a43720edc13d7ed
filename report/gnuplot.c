/* gnuplot.c - gnuplot as a child process, and text that it cannot take for anything else; see plot.h. */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/clock.h"
#include "report/plot.h"

extern char **environ;

enum { PLOT_MAX_BYTES = 16 << 20 };

/* A memory file with `bytes` of text, read position at the start; -1 on failure. It cannot fill a pipe. */
static int file_of(const char *text, size_t bytes)
{
    int fd = memfd_create("gnuplot", MFD_CLOEXEC);
    if (fd < 0) return -1;
    for (size_t done = 0; done < bytes;) {
        ssize_t n = write(fd, text + done, bytes - done);
        if (n < 0) {
            close(fd);
            return -1;
        }
        done += (size_t)n;
    }
    lseek(fd, 0, SEEK_SET);
    return fd;
}

static pid_t spawn(const char *program, int in, int out, int err)
{
    posix_spawn_file_actions_t actions;
    if (posix_spawn_file_actions_init(&actions) != 0) return -1;
    posix_spawn_file_actions_adddup2(&actions, in, 0);
    posix_spawn_file_actions_adddup2(&actions, out, 1);
    posix_spawn_file_actions_adddup2(&actions, err, 2);
    char name[] = "gnuplot", defaults[] = "-d"; /* no ~/.gnuplot: the same picture for everybody */
    char *argv[] = {name, defaults, NULL};
    pid_t pid;
    int failed = posix_spawnp(&pid, program, &actions, NULL, argv, environ);
    posix_spawn_file_actions_destroy(&actions);
    if (failed == 0) return pid;
    errno = failed;
    return -1;
}

/* Reads `fd` to its end or the deadline; EN_ETIMEOUT, EN_EIO (also when it is too long) or EN_OK. */
static en_status read_all(int fd, int64_t deadline_ns, FILE *into)
{
    char chunk[16384];
    size_t total = 0;
    for (;;) {
        struct pollfd ready = {fd, POLLIN, 0};
        int left = eni_ms_left(deadline_ns, 1000);
        if (left == 0) return EN_ETIMEOUT;
        if (poll(&ready, 1, left) <= 0) continue;
        ssize_t n = read(fd, chunk, sizeof chunk);
        if (n == 0) return EN_OK;
        if (n < 0 && errno != EINTR) return EN_EIO;
        if (n > 0) fwrite(chunk, 1, (size_t)n, into);
        total += n > 0 ? (size_t)n : 0;
        if (total > PLOT_MAX_BYTES) return EN_EIO;
    }
}

/* What the child wrote to its error stream, on one line. */
static void first_words(int fd, char *text_out, size_t size)
{
    ssize_t n = pread(fd, text_out, size - 1, 0);
    text_out[n > 0 ? n : 0] = 0;
    for (char *at = text_out; *at != 0; at++)
        if (*at == '\n' || *at == '\t') *at = ' ';
}

eni_picture eni_plot_run(const char *gnuplot, const char *script, size_t bytes, const char *mark,
                         int64_t timeout_ns, char *reason_out, size_t reason_size)
{
    int64_t deadline_ns = eni_now_ns() + timeout_ns;
    int out[2] = {-1, -1}, in = file_of(script, bytes), err = file_of("", 0), code = 0;
    char *text = NULL;
    size_t length = 0;
    FILE *into = open_memstream(&text, &length);
    pid_t pid = -1;
    if (in >= 0 && err >= 0 && into != NULL && pipe2(out, O_CLOEXEC) == 0)
        pid = spawn(gnuplot, in, out[1], err);
    if (pid < 0) snprintf(reason_out, reason_size, "cannot start %s: %s", gnuplot, strerror(errno));
    if (out[1] >= 0) close(out[1]);

    en_status st = pid < 0 ? EN_EIO : read_all(out[0], deadline_ns, into);
    if (into != NULL) fclose(into);
    if (pid > 0) {
        if (st != EN_OK) kill(pid, SIGKILL);
        while (waitpid(pid, &code, 0) < 0 && errno == EINTR) {
        }
        char words[200];
        first_words(err, words, sizeof words);
        if (st == EN_ETIMEOUT)
            snprintf(reason_out, reason_size, "%s did not finish in %.1f s", gnuplot,
                     (double)timeout_ns / 1e9);
        else if (st != EN_OK || code != 0 || memmem(text, length, mark, strlen(mark)) == NULL)
            snprintf(reason_out, reason_size, "%s gave no picture: %s", gnuplot,
                     words[0] ? words : "no reason");
    }
    if (in >= 0) close(in);
    if (err >= 0) close(err);
    if (out[0] >= 0) close(out[0]);
    if (st == EN_OK && code == 0 && text != NULL && memmem(text, length, mark, strlen(mark)) != NULL)
        return (eni_picture){text, length};
    free(text);
    return (eni_picture){NULL, 0};
}

void eni_plot_quote(FILE *script, const char *text, size_t letters)
{
    fputc('\'', script);
    for (const unsigned char *at = (const unsigned char *)text; *at != 0; at++) {
        bool is_start = (*at & 0xc0) != 0x80;
        if (is_start && letters-- == 0) {
            fputs("…", script);
            break;
        }
        if (*at == '\'')
            fputs("''", script);
        else
            fputc(*at < 0x20 || *at == 0x7f || *at == '`' ? '?' : *at, script);
    }
    fputc('\'', script);
}
