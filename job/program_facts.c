/* program_facts.c - which program of the user's this is, so that a report can say whether two runs had the same. */
#include "job/job.h"

#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/digest.h"
#include "core/json.h"

/* The hash of a regular file as JSON. */
static json_t *hash_of(const char *path)
{
    char hex[ENI_DIGEST_HEX];
    struct stat info;
    eni_digest digest;
    const int fd = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    eni_digest_begin(&digest);
    const bool is_read = fd >= 0 && fstat(fd, &info) == 0 && S_ISREG(info.st_mode) &&
                         eni_digest_add_file(&digest, fd, 0, (uint64_t)info.st_size) == 0;
    eni_digest_end(&digest, hex);
    if (fd >= 0) close(fd);
    return is_read ? json_string(hex) : json_null();
}

json_t *eni_program_facts(const char *file, const eni_list *set)
{
    static const char executable[] = "/proc/self/exe";
    char words[1 << 16] = "", path[4096] = "", hex[ENI_DIGEST_HEX];
    const int fd = open("/proc/self/cmdline", O_RDONLY | O_CLOEXEC);
    const ssize_t bytes = fd < 0 ? 0 : read(fd, words, sizeof words - 1);
    if (fd >= 0) close(fd);
    if (file == NULL && readlink(executable, path, sizeof path - 1) < 0) path[0] = 0;
    const char *name = file != NULL ? file : path, *slash = strrchr(name, '/');
    json_t *argv = json_array(), *facts = json_object();
    for (const char *word = words; word < words + bytes; word += strlen(word) + 1)
        json_array_append_new(argv, json_string(word));
    eni_digest_of(words, bytes > 0 ? (size_t)bytes : 0, hex);
    eni_json_set_text(facts, "file", slash != NULL ? slash + 1 : name);
    json_object_set_new(facts, "sha256", hash_of(file != NULL ? file : executable));
    json_object_set_new(facts, "argv_sha256", bytes > 0 ? json_string(hex) : json_null());
    json_object_set_new(facts, "argv", argv);
    json_object_set_new(facts, "set", eni_json_texts(set->item, set->count));
    return facts;
}
