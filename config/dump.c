/* dump.c - a configuration as text again: YAML, argv of a child, pairs that ranks compare. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "config/keys.h"
#include "core/log.h"
#include "core/memory.h"
#include "core/try.h"

/* A double-quoted YAML scalar. */
static void put_quoted(FILE *stream, const char *text)
{
    fputc('"', stream);
    for (; *text != '\0'; text++) {
        unsigned char c = (unsigned char)*text;
        if (c == '"' || c == '\\')
            fprintf(stream, "\\%c", c);
        else if (c < 0x20 || c == 0x7f)
            fprintf(stream, "\\x%02x", c);
        else
            fputc(c, stream);
    }
    fputc('"', stream);
}

static void put_value(FILE *stream, const eni_config *config, const eni_key *key)
{
    char room[64];
    if (key->type == ENI_KEY_TEXT) {
        put_quoted(stream, eni_key_text(config, key, room));
        return;
    }
    if (key->type != ENI_KEY_LIST) {
        fputs(eni_key_text(config, key, room), stream);
        return;
    }
    const eni_list *list = (const eni_list *)(const void *)((const char *)config + key->offset);
    fputc('[', stream);
    for (int i = 0; i < list->count; i++) {
        if (i > 0) fputs(", ", stream);
        put_quoted(stream, list->item[i]);
    }
    fputc(']', stream);
}

/* Where this call writes, and how loudly. */
static bool is_of_this_call(const char *name)
{
    static const char *const names[] = {"out",         "overwrite", "resume", "save", "checkpoint-dir",
                                        "tensorboard", "trace",     "quiet"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (strcmp(names[i], name) == 0) return true;
    return false;
}

en_status eni_config_dump(const eni_config *config, FILE *stream, const char *name)
{
    static const char *const origins[] = {"default", "environment", "file", "flag"};
    const char *group = "";
    fprintf(stream, "# %s %s: everything resolved; `%s --config=FILE` reads it back\n",
            eni_program_name(config->program), EN_VERSION, eni_program_name(config->program));
    for (int k = 0; k < eni_key_count; k++) {
        const eni_key *key = &eni_keys[k];
        if (!eni_key_applies(key, config->program) || (key->flags & ENI_KEY_FLAG_ONLY) != 0) continue;
        if (is_of_this_call(key->name)) continue;
        if (!eni_key_has_value(config, key)) continue;
        if (strcmp(group, key->group) != 0) fprintf(stream, "\n# %s\n", key->group);
        group = key->group;
        fprintf(stream, "%s: ", key->name);
        put_value(stream, config, key);
        fprintf(stream, " # %s\n", origins[config->origin[k]]);
    }
    if (fflush(stream) == 0 && !ferror(stream)) return EN_OK;
    eni_error("config", "cannot write %s: %s; make room, or write elsewhere", name, strerror(errno));
    return EN_EIO;
}

/* Whether a child of `program` would not come to this value by itself. */
static bool must_tell(const eni_config *config, eni_program program, int k)
{
    const eni_key *key = &eni_keys[k];
    char room[64], word[64];
    if (!eni_key_applies(key, program) || !eni_key_has_value(config, key)) return false;
    bool is_about_this_call = (key->flags & ENI_KEY_FLAG_ONLY) != 0 && (key->flags & ENI_KEY_HIDDEN) == 0;
    if (is_about_this_call) return false; /* --help, --config: the file's keys are told one by one */
    if ((key->flags & ENI_KEY_FROM_ENV) != 0 || key->type == ENI_KEY_LIST) return true;
    if (config->origin[k] != ENI_FROM_DEFAULT) return true; /* its own default may follow from another key */
    const char *fallback = eni_key_fallback(key, program, word);
    return fallback == NULL || strcmp(eni_key_text(config, key, room), fallback) != 0;
}

/* Writes the words one behind the other, each ended by a 0. */
static size_t put_words(FILE *stream, const eni_config *config, eni_program program, const char *executable)
{
    size_t count = 1;
    char room[64];
    fprintf(stream, "%s%c", executable, '\0');
    for (int k = 0; k < eni_key_count; k++) {
        const eni_key *key = &eni_keys[k];
        if (!must_tell(config, program, k)) continue;
        if (key->type != ENI_KEY_LIST) {
            fprintf(stream, "--%s=%s%c", key->name, eni_key_text(config, key, room), '\0');
            count++;
            continue;
        }
        const eni_list *list = (const eni_list *)(const void *)((const char *)config + key->offset);
        for (int i = 0; i < list->count; i++, count++)
            fprintf(stream, "--%s=%s%c", key->name, list->item[i], '\0');
    }
    return count;
}

char **eni_config_argv(const eni_config *config, eni_program program, const char *executable)
{
    char *words = NULL, **argv = NULL;
    size_t bytes = 0;
    FILE *stream = open_memstream(&words, &bytes);
    if (stream == NULL) {
        eni_error("config", "out of memory for the arguments of %s", executable);
        return NULL;
    }
    size_t count = put_words(stream, config, program, executable);
    bool is_written = fclose(stream) == 0;
    if (is_written) argv = eni_alloc((count + 1) * sizeof *argv + bytes);
    if (argv != NULL) {
        char *word = memcpy(argv + count + 1, words, bytes);
        for (size_t i = 0; i < count; i++, word += strlen(word) + 1)
            argv[i] = word;
    }
    free(words);
    return argv;
}

/* The items of a list with ',' between them, to be freed; NULL when out of memory. */
static char *join(const eni_list *list)
{
    size_t bytes = 1;
    for (int i = 0; i < list->count; i++)
        bytes += strlen(list->item[i]) + 1;
    char *text = eni_alloc(bytes);
    for (int i = 0; text != NULL && i < list->count; i++) {
        if (i > 0) strcat(text, ",");
        strcat(text, list->item[i]);
    }
    return text;
}

static en_status tell(const eni_config *config, int k, eni_config_see see, void *user)
{
    const eni_key *key = &eni_keys[k];
    char room[64], word[64], *joined = NULL;
    const char *text = NULL, *fallback = eni_key_fallback(key, config->program, word);
    if (key->type == ENI_KEY_LIST)
        text = joined = join((const eni_list *)(const void *)((const char *)config + key->offset));
    else
        text = eni_key_text(config, key, room);
    if (text == NULL) return EN_ENOMEM;
    bool has_value = eni_key_has_value(config, key);
    bool is_default = has_value ? fallback != NULL && strcmp(text, fallback) == 0 : fallback == NULL;
    en_status st =
        see(user, key->name, has_value ? text : NULL, config->origin[k] != ENI_FROM_DEFAULT || !is_default);
    eni_free(joined);
    return st;
}

en_status eni_config_of_kind(const eni_config *config, int kind, eni_config_see see, void *user)
{
    for (int k = 0; k < eni_key_count; k++) {
        const uint32_t flags = eni_keys[k].flags;
        const int is = (flags & ENI_KEY_OWN) != 0     ? ENI_KIND_OWN
                       : (flags & ENI_KEY_ASIDE) != 0 ? ENI_KIND_ASIDE
                                                      : ENI_KIND_CONDITION;
        if (is != kind || (flags & ENI_KEY_HIDDEN) != 0 || !eni_key_applies(&eni_keys[k], config->program))
            continue;
        EN_TRY(tell(config, k, see, user));
    }
    return EN_OK;
}

en_status eni_config_match(const eni_config *config, eni_config_visit visit, void *user)
{
    char room[64];
    for (int k = 0; k < eni_key_count; k++)
        if ((eni_keys[k].flags & ENI_KEY_MATCH) != 0)
            EN_TRY(visit(user, eni_keys[k].name, eni_key_text(config, &eni_keys[k], room)));
    return EN_OK;
}
