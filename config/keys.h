/* keys.h - the typed table behind all inputs and outputs of a configuration; private to config/. */
#ifndef CONFIG_KEYS_H
#define CONFIG_KEYS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "config/config.h"
#include "core/log.h"

typedef enum eni_key_type {
    ENI_KEY_BOOL,   /* bool */
    ENI_KEY_INT,    /* int64_t, min .. max */
    ENI_KEY_REAL,   /* double, min .. max */
    ENI_KEY_CHOICE, /* int64_t: the index of a word */
    ENI_KEY_TIME,   /* int64_t nanoseconds, min .. max in seconds */
    ENI_KEY_AMOUNT, /* int64_t samples, or below 0 epochs: eni_parse_amount */
    ENI_KEY_TARGET, /* eni_target */
    ENI_KEY_TEXT,   /* char * */
    ENI_KEY_LIST    /* eni_list */
} eni_key_type;

enum {
    ENI_KEY_MATCH = 1,     /* must be equal on all ranks of a run */
    ENI_KEY_HIDDEN = 2,    /* internal: neither in --help nor in config.yaml */
    ENI_KEY_FLAG_ONLY = 4, /* not to be set by a file */
    ENI_KEY_COMMAS = 8,    /* a list whose items are also split at commas */
    ENI_KEY_FROM_ENV = 16, /* the environment may set it: always passed to children */
    ENI_KEY_CALL = 128,    /* about this call's outputs: not in config.yaml */
    ENI_KEY_COMMON = 512,  /* on the first page of --help */
    ENI_KEY_RANGES = 1024, /* a list: "1..7" is seven items */
    ENI_KEY_NAMED = 2048,  /* a list of "NAME=VALUE", one for each name, which KEY.NAME=VALUE sets */
    ENI_KEY_STUDY = 256    /* not for arms of a comparison, which sets it itself or has no use for it */
};

enum { ENI_FROM_DEFAULT, ENI_FROM_ENV, ENI_FROM_FILE, ENI_FROM_FLAG, ENI_FROM_ARM };

/* NULL if the text is valid, else what to give ("RANK:FACTOR with a factor of 1 to 1000"). */
typedef const char *(*eni_key_check)(const char *text);

typedef struct eni_key {
    const char *group; /* heading in --help */
    const char *name;
    const char *aliases; /* separated by blanks; one letter is a short flag; or NULL */
    eni_key_type type;
    size_t offset;        /* in eni_config */
    const char *fallback; /* default as text, NULL: none (INT: the field is -1) */
    double min, max;
    const char *words; /* CHOICE: "auto|claim|fixed"; else the text after '=' in --help */
    eni_key_check check;
    const char *bare;  /* the value of a bare flag; NULL: a value is required */
    uint32_t programs; /* 1 << ENI_RUN | .. */
    uint32_t flags;
    const char *note; /* in place of the default in --help, or NULL */
    const char *help;
} eni_key;

/* Ends a failed check: a sentence of place, value and remedy. EN_EINVAL. */
#define eni_config_refuse(...) eni_fail(EN_EINVAL, "config", __VA_ARGS__)

/* A word of another tool, and the answer to it. */
typedef struct eni_foreign {
    const char *key, *word, *answer;
} eni_foreign;

typedef struct eni_program_info {
    const char *name, *usage, *about;
    int min_args, max_args; /* positional arguments */
    const char *defaults;   /* "lr-scale=linear ..": those that differ from the table */
} eni_program_info;

extern const eni_key eni_keys[];
extern const int eni_key_count;
extern const eni_foreign eni_foreigns[]; /* ends with a NULL key */
extern const eni_program_info eni_programs[ENI_PROGRAMS];

/* Finds a key by name or alias, '_' read as '-', in `length` characters of `name`. -1 if not found. */
int eni_key_find(const char *name, size_t length);

/* The same, for a whole string. */
int eni_key_named(const char *name);

/* The same if two programs use one name for different keys: prefers that of `program`. */
int eni_key_find_for(eni_program program, const char *name, size_t length);

bool eni_key_applies(const eni_key *key, eni_program program);

/* The source of its value, ENI_FROM_*; ENI_FROM_DEFAULT also for an unknown key. */
int eni_config_origin(const eni_config *config, const char *key);

/* Whether the configuration's program has the key. */
bool eni_config_takes(const eni_config *config, const char *key);

/* The default of `key` in `program`, as text; NULL: none. May use `word` as a buffer. */
const char *eni_key_fallback(const eni_key *key, eni_program program, char word[64]);

/* Sets a field from text. `place` is the text's place ("--lr", "a.yaml:3:5: lr"). Replaces a list from a weaker source.
 * EN_EINVAL, logged; EN_ENOMEM. */
en_status eni_key_set(eni_config *config, int key, const char *value, const char *place, int origin);

/* Whether the value of a list or text, set by another program's row of the field, is one of this row. EN_EINVAL, logged. */
en_status eni_key_recheck(const eni_config *config, int key);

/* The part behind the key: "0.1" of "lr=0.1", "width=32" of "set.width=32". NULL if it is missing. */
const char *eni_key_value_in(const eni_key *key, const char *text);

/* The canonical text of a scalar field; "" if it has no value. Valid while the config is; `room` is a buffer for numbers. Not
 * for lists. */
const char *eni_key_text(const eni_config *config, const eni_key *key, char room[64]);

/* "from 0 to 65535"; `unit` follows each number. */
void eni_key_range(const eni_key *key, const char *unit, char *text_out, size_t bytes);

/* Whether it has a value. */
bool eni_key_has_value(const eni_config *config, const eni_key *key);

/* Frees and clears a text or list. */
void eni_key_clear(eni_config *config, const eni_key *key);

/* Adds a copy of `item`. EN_ENOMEM. */
en_status eni_list_add(eni_list *list, const char *item);
void eni_list_fini(eni_list *list);

/* Sets the keys of a YAML text; skips keys of other programs, so that one file serves all programs of a run. Messages call it
 * `name`. */
en_status eni_config_yaml(eni_config *config, const char *text, size_t bytes, const char *name);

/* The same for a file. */
en_status eni_config_file(eni_config *config, const char *path);

/* Checks that the keys about devices and their splits fit each other; part of eni_config_resolve. EN_EINVAL, logged. */
en_status eni_config_check_devices(eni_config *config);

/* Whether --strategy is the built-in one for a single process. */
bool eni_config_is_solo(const eni_config *config);

/* An eni_key_check: tcp://HOST:PORT. */
const char *eni_check_endpoint(const char *text);

/* The most similar key name of `program`, or NULL if none is similar enough. */
const char *eni_key_nearest(eni_program program, const char *word);

/* Copies the most similar of the words "a|b|c" to near_out; false if none is similar enough. */
bool eni_word_nearest(const char *words, const char *word, char near_out[64]);

#endif
