/* jsonl.c - see jsonl.h. */
#include "rank/jsonl.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/log.h"
#include "core/try.h"

/* 1 for a whole object of at most `resumed` samples and, if it has one, a time of at most `seconds`. */
static int stays(const char *line, size_t length, uint64_t resumed, double seconds)
{
    static const char key[] = "\"samples\":", time_key[] = "\"t\":";
    const char *at = strstr(line, key), *t = strstr(line, time_key);
    if (length <= 2 || strcmp(line + length - 2, "}\n") != 0 || at == NULL) return 0;
    if (t != NULL && !eni_jsonl_is_before(strtod(t + sizeof time_key - 1, NULL), seconds)) return 0;
    return strtoull(at + sizeof key - 1, NULL, 10) <= resumed;
}

/* Lines come in the order of time: from the first that goes, all go. */
static off_t length_that_stays(FILE *file, uint64_t resumed, double seconds)
{
    char *line = NULL;
    size_t room = 0;
    off_t end = 0;
    for (ssize_t n; (n = getline(&line, &room, file)) > 0 && stays(line, (size_t)n, resumed, seconds);)
        end += n;
    free(line);
    return end;
}

static en_status cut(const char *path, uint64_t resumed, double seconds)
{
    FILE *file = fopen(path, "r+e");
    if (file == NULL && errno == ENOENT) return EN_OK;
    if (file != NULL && ftruncate(fileno(file), length_that_stays(file, resumed, seconds)) == 0)
        return fclose(file) == 0 ? EN_OK : EN_EIO;
    eni_error("record", "cannot cut %s: %s; choose another --out", path, strerror(errno));
    if (file != NULL) fclose(file);
    return EN_EIO;
}

en_status eni_jsonl_open(const char *path, uint64_t resumed, double seconds, FILE **file_out)
{
    if (resumed > 0) EN_TRY(cut(path, resumed, seconds));
    *file_out = fopen(path, resumed > 0 ? "ae" : "we");
    if (*file_out != NULL) return EN_OK;
    eni_error("record", "cannot create %s: %s; choose another --out", path, strerror(errno));
    return EN_EIO;
}
