/* token.c - makes the job token, writes it to a private file, reads and compares it. */
#include "runtime/net/token.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/clock.h"
#include "core/digest.h"
#include "core/files.h"
#include "core/log.h"
#include "core/try.h"
#include "runtime/net/tcp.h"

enum { PATH_BYTES = 4096, LOOK_NS = 20 * ENI_MILLI };

void eni_token_make(eni_token *token_out)
{
    eni_random_bytes(token_out->bytes, sizeof token_out->bytes);
}

void eni_token_hex(const eni_token *token, char hex_out[ENI_TOKEN_HEX])
{
    for (size_t i = 0; i < ENI_TOKEN_BYTES; i++)
        snprintf(hex_out + 2 * i, 3, "%02x", token->bytes[i]);
}

en_status eni_token_parse(const char *hex, eni_token *token_out)
{
    static const size_t digits = ENI_TOKEN_HEX - 1;
    if (strnlen(hex, digits + 1) != digits || strspn(hex, "0123456789abcdefABCDEF") != digits)
        return EN_EFORMAT;
    for (size_t i = 0; i < ENI_TOKEN_BYTES; i++)
        sscanf(hex + 2 * i, "%2hhx", &token_out->bytes[i]);
    return EN_OK;
}

bool eni_token_equal(const eni_token *a, const eni_token *b)
{
    volatile uint8_t difference = 0; /* volatile: no early exit by the compiler */
    for (size_t i = 0; i < ENI_TOKEN_BYTES; i++)
        difference = (uint8_t)(difference | (a->bytes[i] ^ b->bytes[i]));
    return difference == 0;
}

en_status eni_token_path(const char *directory, uint16_t port, char *path_out, size_t path_bytes)
{
    int n = snprintf(path_out, path_bytes, "%s/token-%u", directory, port);
    if (n > 0 && (size_t)n < path_bytes) return EN_OK;
    return eni_fail(EN_EINVAL, "token", "the path of the token's directory is too long: %.200s", directory);
}

en_status eni_private_folder(const char *folder, char why_out[ENI_PRIVATE_WHY])
{
    struct stat about;
    const bool is_there = (mkdir(folder, 0700) == 0 || errno == EEXIST) && lstat(folder, &about) == 0;
    if (!is_there)
        snprintf(why_out, ENI_PRIVATE_WHY, "cannot create the directory %.200s: %s", folder, strerror(errno));
    else if (S_ISDIR(about.st_mode) && about.st_uid == geteuid() && (about.st_mode & 022) == 0)
        return EN_OK;
    else
        snprintf(
            why_out, ENI_PRIVATE_WHY,
            "will not write into %.200s: it must be a directory of user %u that nobody else can write to",
            folder, (unsigned)geteuid());
    return is_there ? EN_EDENIED : EN_EIO;
}

/* Refuses a path whose directory lets others plant a token. */
static en_status safe_directory(const char *path)
{
    char why[ENI_PRIVATE_WHY];
    char directory[PATH_BYTES];
    const char *slash = strrchr(path, '/');
    size_t bytes = slash == NULL ? 0 : (size_t)(slash - path);
    if (slash == NULL || bytes >= sizeof directory)
        return eni_fail(EN_EINVAL, "token", "'%.200s' is not a path with a directory", path);
    snprintf(directory, sizeof directory, "%.*s", bytes == 0 ? 1 : (int)bytes, path);
    const en_status st = eni_private_folder(directory, why);
    if (st != EN_OK) eni_error("token", "the job token: %s", why);
    return st;
}

/* Locked before it gets its name, so that nobody finds it there unlocked. */
en_status eni_token_write(const eni_token *token, const char *path, int *lock_out)
{
    char line[ENI_TOKEN_HEX + 1], why[ENI_PRIVATE_WHY + 256];
    EN_TRY(safe_directory(path));
    eni_token_hex(token, line);
    line[ENI_TOKEN_HEX - 1] = '\n';
    const en_status st = eni_file_hold(path, line, ENI_TOKEN_HEX, true, lock_out, why, sizeof why);
    return st == EN_OK ? st : eni_fail(st, "token", "%s", why);
}

en_status eni_secret_open(const char *who, const char *path, int *fd_out)
{
    struct stat about = {0};
    const int fd = open(path, O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0 && (errno == ENOENT || errno == ESTALE)) return EN_ENOENT;
    if (fd < 0 && errno != ELOOP) return eni_fail(EN_EIO, who, "cannot read %s: %s", path, strerror(errno));
    if (fd >= 0 && fstat(fd, &about) == 0 && S_ISREG(about.st_mode) && about.st_uid == geteuid() &&
        (about.st_mode & 077) == 0) {
        *fd_out = fd;
        return EN_OK;
    }
    if (fd >= 0)
        close(fd);
    else
        lstat(path, &about);
    return eni_fail(EN_EDENIED, who,
                    "cannot read %s: it holds a secret, so it must be a regular file of user %u that nobody "
                    "else can read (mode 0600), but it is %s of user %u with mode %03o",
                    path, (unsigned)geteuid(),
                    fd < 0                   ? "a symbolic link"
                    : S_ISREG(about.st_mode) ? "a file"
                                             : "not a regular file",
                    (unsigned)about.st_uid, (unsigned)(about.st_mode & 0777));
}

eni_writer_state eni_writer_look(const char *path)
{
    const int fd = open(path, O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0) return ENI_WRITER_UNKNOWN;
    const bool is_free = flock(fd, LOCK_SH | LOCK_NB) == 0;
    const int error = errno;
    close(fd);
    return is_free ? ENI_WRITER_ENDED : error == EWOULDBLOCK ? ENI_WRITER_LIVES : ENI_WRITER_UNKNOWN;
}

/* Reads one token, with or without a newline behind it, to the end of the file. */
static en_status read_text(int fd, eni_token *token_out)
{
    char text[ENI_TOKEN_HEX + 2] = {0};
    size_t bytes = 0;
    while (bytes < sizeof text - 1) {
        ssize_t n = read(fd, text + bytes, sizeof text - 1 - bytes);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return EN_EIO;
        if (n == 0) break;
        bytes += (size_t)n;
    }
    if (bytes == ENI_TOKEN_HEX && text[bytes - 1] == '\n') text[--bytes] = '\0';
    return bytes == ENI_TOKEN_HEX - 1 ? eni_token_parse(text, token_out) : EN_EFORMAT;
}

/* EN_ENOENT is not logged. */
static en_status read_file(const char *path, eni_token *token_out)
{
    int fd;
    EN_TRY(eni_secret_open("token", path, &fd));
    const en_status st = read_text(fd, token_out);
    if (st != EN_OK) eni_error("token", "%s does not contain 32 hex digits", path);
    close(fd);
    return st;
}

en_status eni_token_read(const char *path, eni_token *token_out)
{
    const en_status st = read_file(path, token_out);
    if (st == EN_ENOENT)
        eni_error(
            "token",
            "cannot read the job token %s: the file does not exist (is the leader running, as this user?)",
            path);
    return st;
}

en_status eni_token_await(const char *path, int64_t deadline_ns, int abort_fd, eni_token *token_out)
{
    en_status st;
    while ((st = read_file(path, token_out)) == EN_ENOENT && eni_now_ns() < deadline_ns)
        if (eni_tcp_wait(-1, 0, eni_now_ns() + LOOK_NS, abort_fd) == EN_EPEER) return EN_EINTR;
    return st;
}

en_status eni_token_read_fd(int fd, eni_token *token_out)
{
    en_status st = read_text(fd, token_out);
    if (st != EN_OK)
        eni_error("token",
                  "descriptor %d does not provide a job token of 32 hex digits: a process joins its run once",
                  fd);
    close(fd);
    return st;
}

void eni_token_remove(const char *path)
{
    if (unlink(path) != 0 && errno != ENOENT)
        eni_warn("token", "cannot remove %s: %s", path, strerror(errno));
}
