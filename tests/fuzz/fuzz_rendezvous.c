/* fuzz_rendezvous.c - any bytes as the file of --rendezvous=file://, and as the flag's text. What is accepted
 * is written again and must read the same. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/log.h"
#include "runtime/control/file_rendezvous.h"
#include "tests/fuzz/must.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

static char folder[] = "/tmp/entrain-fuzz-XXXXXX";
static char path[sizeof folder + 8];

static void leave_nothing(void)
{
    unlink(path);
    rmdir(folder);
}

static void write_file(const uint8_t *data, size_t bytes)
{
    if (path[0] == 0) {
        must(mkdtemp(folder) != NULL);
        snprintf(path, sizeof path, "%s/meet", folder);
        atexit(leave_nothing);
    }
    const int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    must(fd >= 0 && (bytes == 0 || write(fd, data, bytes) == (ssize_t)bytes));
    close(fd);
}

static void as_flag(const uint8_t *data, size_t bytes)
{
    char text[600], file[512];
    uint16_t port;
    if (bytes >= sizeof text) return;
    if (bytes > 0) memcpy(text, data, bytes);
    text[bytes] = 0;
    if (eni_file_rendezvous_parse(text, file, sizeof file, &port) == EN_OK) must(file[0] == '/');
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    eni_file_rendezvous rendezvous, again;
    int lock = -1;
    eni_log_set_level(-1);
    as_flag(data, bytes);
    write_file(data, bytes);
    if (eni_file_rendezvous_read(path, &rendezvous) != EN_OK) return 0;
    must(rendezvous.naddresses >= 0 && rendezvous.naddresses <= ENI_FILE_RENDEZVOUS_ADDRESSES);
    must(eni_file_rendezvous_write(&rendezvous, path, &lock) == EN_OK);
    must(eni_file_rendezvous_read(path, &again) == EN_OK);
    must(eni_token_equal(&rendezvous.token, &again.token) && rendezvous.pid == again.pid);
    must(strcmp(rendezvous.host, again.host) == 0 && strcmp(rendezvous.host_id, again.host_id) == 0);
    must(rendezvous.naddresses == again.naddresses);
    eni_token_remove(path);
    close(lock);
    return 0;
}
