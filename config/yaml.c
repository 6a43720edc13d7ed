/* yaml.c - reads a flat YAML mapping of keys to values (libyaml), with line and column in every error.
 *
 *     lr: 0.1
 *     straggler: [1:3, 2:1.5]
 *
 * Refuses nested mappings, anchors, aliases, repeated keys and several documents: a configuration has one level, and readers
 * see what applies. */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <string.h>
#include <sys/types.h>
#include <unistd.h>
#include <yaml.h>

#include "config/keys.h"
#include "core/log.h"
#include "core/memory.h"
#include "core/try.h"

#define MAX_BYTES (1u << 20)

typedef struct reader {
    yaml_parser_t parser;
    yaml_event_t event; /* the last one, to be deleted */
    const char *name;   /* of the file, for messages */
    eni_config *config;
    bool seen[ENI_CONFIG_KEYS_MAX];
} reader;

static en_status refuse_at(const reader *r, const char *problem)
{
    return eni_config_refuse("%s:%zu:%zu: %s", r->name, r->event.start_mark.line + 1,
                             r->event.start_mark.column + 1, problem);
}

static en_status next_event(reader *r)
{
    yaml_event_delete(&r->event);
    if (yaml_parser_parse(&r->parser, &r->event)) return EN_OK;
    const yaml_parser_t *p = &r->parser;
    if (p->error == YAML_MEMORY_ERROR)
        return eni_fail(EN_ENOMEM, "config", "out of memory while reading %s", r->name);
    return eni_config_refuse("%s:%zu:%zu: %s; give lines of `key: value`", r->name, p->problem_mark.line + 1,
                             p->problem_mark.column + 1,
                             p->problem != NULL ? p->problem : "this is not YAML");
}

/* The text of a scalar without an anchor, valid until the next event. */
static en_status scalar_text(const reader *r, const char **text_out)
{
    const char *text = (const char *)r->event.data.scalar.value;
    if (r->event.data.scalar.anchor != NULL)
        return refuse_at(r, "anchors are not supported; write the value itself");
    if (strlen(text) != r->event.data.scalar.length)
        return refuse_at(r, "a value has a zero byte; remove it");
    bool is_plain = r->event.data.scalar.style == YAML_PLAIN_SCALAR_STYLE;
    if (is_plain && (*text == '\0' || strcmp(text, "~") == 0 || strcmp(text, "null") == 0))
        return refuse_at(r, "a key has no value; give one, or remove the line");
    *text_out = text;
    return EN_OK;
}

/* Finds the key named by the current scalar; -1 for a key of another program. */
static en_status read_key(reader *r, int *key_out)
{
    const char *name;
    char message[300];
    if (r->event.type != YAML_SCALAR_EVENT)
        return refuse_at(r, "a key must be a plain word; give `key: value`");
    EN_TRY(scalar_text(r, &name));
    int k = eni_key_find_for(r->config->program, name, strlen(name));
    if (k < 0 || (eni_keys[k].flags & ENI_KEY_FLAG_ONLY) != 0) {
        const char *near = eni_key_nearest(r->config->program, name);
        snprintf(message, sizeof message, "unknown key \"%.100s\" in a file; %s%s", name,
                 near != NULL ? "the nearest is " : "see --help for all", near != NULL ? near : "");
        return refuse_at(r, message);
    }
    if (r->seen[k]) {
        snprintf(message, sizeof message, "\"%s\" is set twice; remove one", eni_keys[k].name);
        return refuse_at(r, message);
    }
    r->seen[k] = true;
    *key_out = eni_key_applies(&eni_keys[k], r->config->program) ? k : -1;
    return EN_OK;
}

static en_status set_scalar(reader *r, int key)
{
    const char *text;
    char place[1100];
    EN_TRY(scalar_text(r, &text));
    if (key < 0) return EN_OK;
    snprintf(place, sizeof place, "%.1000s:%zu:%zu: %s", r->name, r->event.start_mark.line + 1,
             r->event.start_mark.column + 1, eni_keys[key].name);
    return eni_key_set(r->config, key, text, place, ENI_FROM_FILE);
}

/* Reads a value: a scalar, or for a list a sequence of scalars. */
static en_status read_value(reader *r, int key)
{
    if (r->event.type == YAML_SCALAR_EVENT) return set_scalar(r, key);
    if (r->event.type == YAML_ALIAS_EVENT)
        return refuse_at(r, "aliases are not supported; write the value itself");
    if (r->event.type != YAML_SEQUENCE_START_EVENT)
        return refuse_at(r, "a value must be one word or number; nested keys are not supported");
    if (key >= 0 && eni_keys[key].type != ENI_KEY_LIST)
        return refuse_at(r, "this key takes one value, not a list; give `key: value`");
    for (;;) {
        EN_TRY(next_event(r));
        if (r->event.type == YAML_SEQUENCE_END_EVENT) return EN_OK;
        if (r->event.type != YAML_SCALAR_EVENT)
            return refuse_at(r, "a list may contain words or numbers only");
        EN_TRY(set_scalar(r, key));
    }
}

static en_status read_mapping(reader *r)
{
    for (;;) {
        int key = -1;
        EN_TRY(next_event(r));
        if (r->event.type == YAML_MAPPING_END_EVENT) return EN_OK;
        EN_TRY(read_key(r, &key));
        EN_TRY(next_event(r));
        EN_TRY(read_value(r, key));
    }
}

static en_status read_stream(reader *r)
{
    bool has_document = false;
    for (;;) {
        EN_TRY(next_event(r));
        switch (r->event.type) {
        case YAML_STREAM_START_EVENT:
        case YAML_DOCUMENT_END_EVENT: break;
        case YAML_STREAM_END_EVENT: return EN_OK;
        case YAML_DOCUMENT_START_EVENT:
            if (has_document) return refuse_at(r, "a second document starts here; give one document");
            has_document = true;
            break;
        case YAML_MAPPING_START_EVENT: EN_TRY(read_mapping(r)); break;
        default: return refuse_at(r, "expected lines of `key: value`");
        }
    }
}

en_status eni_config_yaml(eni_config *config, const char *text, size_t bytes, const char *name)
{
    reader r = {.name = name, .config = config};
    if (!yaml_parser_initialize(&r.parser))
        return eni_fail(EN_ENOMEM, "config", "out of memory while reading %s", name);
    yaml_parser_set_input_string(&r.parser, (const unsigned char *)text, bytes);
    en_status st = read_stream(&r);
    yaml_event_delete(&r.event);
    yaml_parser_delete(&r.parser);
    return st;
}

/* Reads at most `room` bytes; -1 and errno. Gives up on a silent pipe after 5 s. */
static ssize_t read_all(int fd, char *text, size_t room)
{
    enum { TIMEOUT_MS = 5000 };
    size_t n = 0;
    for (;;) {
        struct pollfd in = {.fd = fd, .events = POLLIN};
        const int ready = poll(&in, 1, TIMEOUT_MS);
        if (ready == 0) errno = ETIMEDOUT;
        if (ready <= 0) return -1;
        const ssize_t got = read(fd, text + n, room - n);
        if (got < 0 && errno == EAGAIN) continue;
        if (got <= 0) return got < 0 ? -1 : (ssize_t)n;
        n += (size_t)got;
    }
}

en_status eni_config_file(eni_config *config, const char *path)
{
    const int fd = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    if (fd < 0)
        return eni_fail(errno == ENOENT ? EN_ENOENT : EN_EIO, "config",
                        "--config: \"%.200s\" cannot be opened: %s; give a YAML file", path, strerror(errno));
    char *text = eni_alloc(MAX_BYTES + 1);
    const ssize_t bytes = text == NULL ? -1 : read_all(fd, text, MAX_BYTES + 1);
    en_status st = text == NULL                ? EN_ENOMEM
                   : bytes < 0                 ? EN_EIO
                   : (size_t)bytes > MAX_BYTES ? EN_EINVAL
                                               : EN_OK;
    if (st == EN_EIO)
        eni_error("config", "--config: \"%.200s\" cannot be read: %s; give a YAML file", path,
                  strerror(errno));
    if (st == EN_EINVAL)
        eni_error("config", "--config: \"%.200s\" exceeds %u bytes; give a YAML file of keys", path,
                  MAX_BYTES);
    if (st == EN_OK) st = eni_config_yaml(config, text, (size_t)bytes, path);
    eni_free(text);
    close(fd);
    return st;
}
