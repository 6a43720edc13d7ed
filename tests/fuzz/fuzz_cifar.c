/* fuzz_cifar.c - any bytes as a file of CIFAR-10 (the first byte even) or CIFAR-100: accepted only if they are whole
 * records whose labels are in range. */
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "core/log.h"
#include "data/dataset_make.h"
#include "tests/fuzz/must.h"
#include "tests/heard.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    eni_record_file file = {0};
    char path[32];
    eni_log_set_sink(hear, NULL);
    if (bytes == 0) return 0;
    const int kind = data[0] % 2 == 0 ? ENI_CIFAR_10 : ENI_CIFAR_100;
    const size_t labels = kind == ENI_CIFAR_10 ? 1 : 2, size = 3072 + labels;
    const int fd = memfd_create("input", 0);
    must(fd >= 0 && write(fd, data + 1, bytes - 1) == (ssize_t)(bytes - 1));
    /* A fuzzer does not guess lengths: half of the inputs are filled up to a whole record. */
    const size_t whole = data[0] & 2 ? (bytes - 1 + size - 1) / size * size : bytes - 1;
    must(ftruncate(fd, (off_t)whole) == 0);
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    en_status st = eni_cifar_map(kind, path, true, &file);
    if (st == EN_OK) st = eni_cifar_check(kind, path, &file, 0, file.count);
    bool is_good = whole > 0 && whole % size == 0;
    for (size_t at = labels; is_good && at <= bytes - 1; at += size)
        is_good = data[at] < (kind == ENI_CIFAR_10 ? 10 : 100);
    must((st == EN_OK) == is_good);
    must(st != EN_OK || (file.count * size == whole && file.bytes == whole));
    if (st == EN_OK && bytes > 1) must(memcmp(file.base, data + 1, bytes - 1) == 0);
    eni_cifar_unmap(&file);
    close(fd);
    return 0;
}
