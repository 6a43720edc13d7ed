/* run.c - see run.h. */
#include "tests/system/run.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

static char out[128];
static int nruns;

static json_t *train_with(double seconds, const char *flags)
{
    process p;
    char path[160];
    json_error_t error;
    snprintf(out, sizeof out, "%s/run%d", system_folder(), nruns++);
    process_start(&p, "entrain", NULL, "run --quiet --log-level=warn --threads=1 --out=%s %s", out, flags);
    int code = process_wait(&p, seconds);
    if (code != 0) fail_msg("entrain run %s: exit %d\n%s", flags, code, process_err(&p));
    snprintf(path, sizeof path, "%s/result.json", out);
    json_t *result = json_load_file(path, 0, &error);
    if (result == NULL) fail_msg("%s: %s", path, error.text);
    return result;
}

json_t *train(double seconds, const char *format, ...)
{
    char flags[2048];
    va_list args;
    va_start(args, format);
    vsnprintf(flags, sizeof flags, format, args);
    va_end(args);
    return train_with(seconds, flags);
}

const char *train_out(void)
{
    return out;
}

void hashes_of(const json_t *result, char hashes_out[HASHES])
{
    const char *params = text_at(result, "params_sha256");
    const char *buffers = json_string_value(json_object_get(result, "buffers_sha256"));
    assert_int_equal(strlen(params), 64);
    snprintf(hashes_out, HASHES, "%s%s%s", params, buffers != NULL ? " " : "",
             buffers != NULL ? buffers : "");
}

const char *train_hash(double seconds, const char *format, ...)
{
    static char hashes[8][HASHES];
    static int next;
    char flags[2048], *hash = hashes[next++ % 8];
    va_list args;
    va_start(args, format);
    vsnprintf(flags, sizeof flags, format, args);
    va_end(args);
    json_t *result = train_with(seconds, flags);
    hashes_of(result, hash);
    json_decref(result);
    return hash;
}

static const json_t *value_at(const json_t *object, const char *path)
{
    char copy[128];
    const json_t *value = object;
    snprintf(copy, sizeof copy, "%s", path);
    for (char *save, *key = strtok_r(copy, ".", &save); key != NULL; key = strtok_r(NULL, ".", &save))
        value = json_object_get(value, key);
    if (value == NULL) fail_msg("result.json has no %s", path);
    return value;
}

double number_at(const json_t *object, const char *path)
{
    const json_t *value = value_at(object, path);
    if (!json_is_number(value)) fail_msg("%s of result.json is no number", path);
    return json_number_value(value);
}

const char *text_at(const json_t *object, const char *path)
{
    const json_t *value = value_at(object, path);
    if (!json_is_string(value)) fail_msg("%s of result.json is no text", path);
    return json_string_value(value);
}

json_t *read_lines(const char *path)
{
    char line[4096];
    json_error_t error;
    json_t *list = json_array();
    FILE *file = fopen(path, "re");
    if (file == NULL) fail_msg("%s is not there", path);
    while (fgets(line, sizeof line, file) != NULL) {
        json_t *object = json_loads(line, 0, &error);
        if (!json_is_object(object)) fail_msg("%s: %s: %s", path, error.text, line);
        json_array_append_new(list, object);
    }
    fclose(file);
    return list;
}

int has_device(const char *name)
{
    char path[4096];
    if (strcmp(name, "ref") == 0) return 1;
    snprintf(path, sizeof path, "%s/plugins/device_%s.so", EN_BUILD_DIR, name);
    return access(path, R_OK) == 0;
}

int has_bf16(void)
{
#ifdef __x86_64__
    return __builtin_cpu_supports("avx512bf16");
#else
    return 0;
#endif
}

int has_fashion_mnist(void)
{
    process p;
    process_start(&p, "entrain", NULL, "data fashion-mnist");
    return process_wait(&p, 20) == 0;
}
