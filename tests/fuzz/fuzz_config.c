/* fuzz_config.c - any bytes as a configuration file and as a command line: what is accepted comes back from
 * its own dump. The first byte chooses the program. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "config/config.h"
#include "config/keys.h"
#include "core/log.h"
#include "tests/heard.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

enum { WORDS = 16 };

/* What was read from a file is written as YAML; that must be readable, if the texts are UTF-8 at all: libyaml
 * has refused the file otherwise. */
static void check_dump(const eni_config *config)
{
    char *text = NULL;
    size_t bytes;
    eni_config again;
    FILE *stream = open_memstream(&text, &bytes);
    if (stream == NULL || eni_config_dump(config, stream, "dump") != EN_OK) abort();
    fclose(stream);
    if (eni_config_init(config->program, &again) != EN_OK) abort();
    if (eni_config_yaml(&again, text, bytes, "dump") != EN_OK) abort();
    eni_config_fini(&again);
    free(text);
}

static void as_file(eni_program program, const char *text, size_t bytes)
{
    eni_config config;
    if (eni_config_init(program, &config) != EN_OK) return;
    if (eni_config_yaml(&config, text, bytes, "input") == EN_OK) check_dump(&config);
    eni_config_fini(&config);
}

/* Lines are words. */
static void as_flags(eni_program program, const char *text, size_t bytes)
{
    char *copy = malloc(bytes + 1), *argv[WORDS + 1] = {"program"};
    int argc = 1;
    eni_config config;
    if (copy == NULL) return;
    memcpy(copy, text, bytes);
    copy[bytes] = '\0';
    for (char *word = strtok(copy, "\n"); word != NULL && argc < WORDS; word = strtok(NULL, "\n"))
        if (strncmp(word, "--config", 8) != 0) argv[argc++] = word; /* no files of this machine */
    if (eni_config_parse(program, argc, argv, &config) == EN_OK) {
        eni_config arm;
        for (int i = 0; i < config.arm.count; i++)
            if (eni_config_arm(&config, config.arm.item[i], &arm) == EN_OK) eni_config_fini(&arm);
        eni_config_fini(&config);
    }
    free(copy);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    if (bytes == 0) return 0;
    eni_program program = (eni_program)(data[0] % ENI_PROGRAMS);
    eni_log_set_sink(hear, NULL);
    as_file(program, (const char *)data + 1, bytes - 1);
    as_flags(program, (const char *)data + 1, bytes - 1);
    return 0;
}
