/* dump.c - writes a configuration as text: YAML, argv of a child, pairs that ranks compare; and --help. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "config/keys.h"
#include "core/files.h"
#include "core/log.h"
#include "core/memory.h"
#include "core/options.h"
#include "core/try.h"

static const eni_list *list_of(const eni_config *config, const eni_key *key)
{
    return (const eni_list *)(const void *)((const char *)config + key->offset);
}

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
    const eni_list *list = list_of(config, key);
    fputc('[', stream);
    for (int i = 0; i < list->count; i++) {
        if (i > 0) fputs(", ", stream);
        put_quoted(stream, list->item[i]);
    }
    fputc(']', stream);
}

en_status eni_config_dump(const eni_config *config, FILE *stream, const char *name)
{
    static const char *const origins[] = {"default", "environment", "file", "flag", "arm"};
    const char *group = "";
    const char *command = eni_program_name(config->program == ENI_RANK ? ENI_RUN : config->program);
    fprintf(stream, "# %s %s: all resolved values; `%s --config=FILE` reads them back\n", command, EN_VERSION,
            command);
    for (int k = 0; k < eni_key_count; k++) {
        const eni_key *key = &eni_keys[k];
        if (!eni_key_applies(key, config->program) || (key->flags & (ENI_KEY_FLAG_ONLY | ENI_KEY_CALL)) != 0)
            continue;
        if (!eni_key_has_value(config, key)) continue;
        if (key->offset == offsetof(eni_config, data_dir) && eni_is_url(config->data))
            continue; /* the local copy of a URL on this host */
        if (strcmp(group, key->group) != 0) fprintf(stream, "\n# %s\n", key->group);
        group = key->group;
        fprintf(stream, "%s: ", key->name);
        put_value(stream, config, key);
        fprintf(stream, " # %s\n", origins[config->origin[k]]);
    }
    if (fflush(stream) == 0 && !ferror(stream)) return EN_OK;
    return eni_fail(EN_EIO, "config", "cannot write %s: %s; free some space, or write elsewhere", name,
                    strerror(errno));
}

en_status eni_config_write(const eni_config *config, const char *dir)
{
    char path[1100];
    snprintf(path, sizeof path, "%.1024s/config.yaml", dir);
    FILE *file = eni_file_open(path, "w");
    if (file == NULL)
        return eni_fail(EN_EIO, "config", "cannot create %s: %s; choose another --out", path,
                        strerror(errno));
    const en_status st = eni_config_dump(config, file, path);
    if (fclose(file) == 0 || st != EN_OK) return st;
    return eni_fail(EN_EIO, "config", "cannot write %s: %s", path, strerror(errno));
}

/* Whether the launcher itself has decided on this value, or the user: a program's own settings win over defaults. */
static bool is_decided(const eni_config *config, int k)
{
    const eni_key *key = &eni_keys[k];
    return config->origin[k] != ENI_FROM_DEFAULT || (key->flags & (ENI_KEY_FROM_ENV | ENI_KEY_HIDDEN)) != 0 ||
           strcmp(key->name, "strategy") == 0 || strcmp(key->name, "server") == 0;
}

/* Whether a child of `program` must be passed this value. */
static bool must_tell(const eni_config *config, eni_program program, int k)
{
    const eni_key *key = &eni_keys[k];
    char room[64], word[64];
    if (!eni_key_applies(key, program) || !eni_key_has_value(config, key)) return false;
    if (program == ENI_RANK && !is_decided(config, k)) return false;
    bool is_about_this_call = (key->flags & ENI_KEY_FLAG_ONLY) != 0 && (key->flags & ENI_KEY_HIDDEN) == 0;
    if (is_about_this_call) return false; /* --help, --config: the file's keys are passed individually */
    if (key->type == ENI_KEY_INT && key->min > 0 && strcmp(eni_key_text(config, key, room), "0") == 0)
        return false; /* none given */
    if ((key->flags & ENI_KEY_FROM_ENV) != 0 || key->type == ENI_KEY_LIST) return true;
    if (config->origin[k] != ENI_FROM_DEFAULT) return true; /* its own default may follow from another key */
    const char *fallback = eni_key_fallback(key, program, word);
    return fallback == NULL || strcmp(eni_key_text(config, key, room), fallback) != 0;
}

/* Writes the words in order, each ended by a 0. */
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
        const eni_list *list = list_of(config, key);
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

/* The items of a list separated by ',', to be freed; NULL when out of memory. */
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
        text = joined = join(list_of(config, key));
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

static en_status each_with(const eni_config *config, uint32_t flags, eni_config_see see, void *user)
{
    for (int k = 0; k < eni_key_count; k++) {
        const bool is = (eni_keys[k].flags & (flags | ENI_KEY_HIDDEN)) == flags;
        if (is && eni_key_applies(&eni_keys[k], config->program)) EN_TRY(tell(config, k, see, user));
    }
    return EN_OK;
}

en_status eni_config_each(const eni_config *config, eni_config_see see, void *user)
{
    return each_with(config, 0, see, user);
}

en_status eni_config_each_match(const eni_config *config, eni_config_see see, void *user)
{
    return each_with(config, ENI_KEY_MATCH, see, user);
}

/* ---- --help, from the table ---------------------------------------------------------------------------- */

enum { WIDTH = 100, INDENT = 34, ONE_PAGE = 16 /* flags */ };

/* Wraps `text` at blanks, indenting each line but the first, which starts at `column`. */
static void put_wrapped(FILE *stream, const char *text, int column)
{
    if (column >= INDENT) {
        fputc('\n', stream);
        column = 0;
    }
    while (*text != '\0') {
        int length = (int)strcspn(text, " ");
        if (column > INDENT && column + 1 + length > WIDTH) {
            fputc('\n', stream);
            column = 0;
        }
        int gap = column < INDENT ? INDENT - column : 1;
        fprintf(stream, "%*s%.*s", gap, "", length, text);
        column += gap + length;
        text += length + (int)strspn(text + length, " ");
    }
    fputc('\n', stream);
}

/* "(default 0.01; from 0 to 1000000)" */
static void describe(const eni_key *key, eni_program program, char *text_out, size_t bytes)
{
    char word[64], range[80] = "";
    const char *fallback = eni_key_fallback(key, program, word);
    bool has_range = key->type == ENI_KEY_INT || key->type == ENI_KEY_REAL || key->type == ENI_KEY_TIME;
    if (has_range) eni_key_range(key, key->type == ENI_KEY_TIME ? "s" : "", range, sizeof range);
    if (key->note != NULL && fallback != word)
        fallback = key->note; /* only where the table's default applies */
    if (fallback == NULL) fallback = "none";
    *text_out = '\0';
    if (*fallback != '\0')
        snprintf(text_out, bytes, "(default %s%s%s)", fallback, has_range ? "; " : "", range);
}

static void put_key(FILE *stream, const eni_key *key, eni_program program)
{
    char left[160], about[160], text[512], letter = ' ';
    const char *aliases = key->aliases != NULL ? key->aliases : "";
    if (aliases[0] != '\0' && (aliases[1] == '\0' || aliases[1] == ' ')) letter = aliases[0];
    if (strlen(aliases) > 1 && aliases[strlen(aliases) - 2] == ' ') letter = aliases[strlen(aliases) - 1];
    const char *is_letter = letter == ' ' ? "    " : (char[]){'-', letter, ',', ' ', '\0'};
    if (key->type == ENI_KEY_BOOL)
        snprintf(left, sizeof left, "  %s--%s%s", is_letter, key->note == NULL ? "[no-]" : "", key->name);
    else if (key->bare != NULL)
        snprintf(left, sizeof left, "  %s--%s[=%s]", is_letter, key->name, key->words);
    else
        snprintf(left, sizeof left, "  %s--%s%c%s", is_letter, key->name,
                 (key->flags & ENI_KEY_NAMED) != 0 ? '.' : '=', key->words);
    describe(key, program, about, sizeof about);
    snprintf(text, sizeof text, "%s %s", key->help, about);
    fputs(left, stream);
    put_wrapped(stream, text, (int)strlen(left));
}

static int count_flags(eni_program program)
{
    int n = 0;
    for (int k = 0; k < eni_key_count; k++)
        n += eni_key_applies(&eni_keys[k], program) && (eni_keys[k].flags & ENI_KEY_HIDDEN) == 0;
    return n;
}

void eni_config_help(eni_program program, bool has_all, FILE *stream)
{
    const eni_program_info *info = &eni_programs[program];
    const char *group = "";
    int left_out = 0;
    fprintf(stream, "usage: %s%s%s\n\n%s\n", info->name, info->usage[0] == 0 ? "" : " ", info->usage,
            info->about);
    has_all = has_all || count_flags(program) <= ONE_PAGE;
    for (int k = 0; k < eni_key_count; k++) {
        const eni_key *key = &eni_keys[k];
        if (!eni_key_applies(key, program) || (key->flags & ENI_KEY_HIDDEN) != 0) continue;
        if (!has_all && (key->flags & ENI_KEY_COMMON) == 0) {
            left_out++;
            continue;
        }
        if (strcmp(group, key->group) != 0) fprintf(stream, "\n%s:\n", key->group);
        group = key->group;
        put_key(stream, key, program);
    }
    if (left_out > 0) {
        fprintf(stream, "\n%d more: %s --help=all\n", left_out, info->name);
        return;
    }
    fprintf(
        stream,
        "\nDashes and underscores are equivalent, and so are --key=value and --key value; a --config file "
        "has\nlines of `key: value`. Flags override the file, the file overrides the environment.\n");
}
