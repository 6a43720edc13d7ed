/* help.c - --help, from the table. */
#include <stdio.h>
#include <string.h>

#include "config/keys.h"

enum { WIDTH = 100, INDENT = 34 };

/* Breaks `text` at blanks, each line but the first indented; the first starts at `column`. */
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
    if (key->note != NULL) fallback = key->note;
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
        snprintf(left, sizeof left, "  %s--%s=%s", is_letter, key->name, key->words);
    describe(key, program, about, sizeof about);
    snprintf(text, sizeof text, "%s %s", key->help, about);
    fputs(left, stream);
    put_wrapped(stream, text, (int)strlen(left));
}

void eni_config_help(eni_program program, FILE *stream)
{
    const eni_program_info *info = &eni_programs[program];
    const char *group = "";
    fprintf(stream, "usage: %s%s%s\n\n%s\n", info->name, info->usage[0] == 0 ? "" : " ", info->usage,
            info->about);
    for (int k = 0; k < eni_key_count; k++) {
        const eni_key *key = &eni_keys[k];
        if (!eni_key_applies(key, program) || (key->flags & ENI_KEY_HIDDEN) != 0) continue;
        if (strcmp(group, key->group) != 0) fprintf(stream, "\n%s\n", key->group);
        group = key->group;
        put_key(stream, key, program);
    }
    fprintf(stream,
            "\nDashes and underscores are alike, --key=value and --key value too; a file of --config "
            "holds\nlines of `key: value`. Flags win over the file, the file over the environment.\n");
}
