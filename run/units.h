/* units.h - texts with units: rates, durations, sizes, numbers. Pure functions that log nothing: the caller knows
 * the place and reports the error. Every parser reads the whole text or fails, accepts no sign, NaN or infinity
 * unless documented, and sets its output only on success (true). Unit letters may be of either case, apart from
 * bit and B: "200MB", "200mb" and "1.5GiB" are bytes, "1Gbit" are bits. */
#ifndef RUN_UNITS_H
#define RUN_UNITS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "run/transform.h"

/* A decimal integer, with a sign if negative. */
bool eni_parse_i64(const char *text, int64_t *value_out);

/* A finite real number: strtod's decimal forms, without hexadecimal. */
bool eni_parse_real(const char *text, double *value_out);

/* B, kB MB GB (powers of 1000), KiB MiB GiB (powers of 1024) per second, or kbit Mbit Gbit; without a unit: bytes; a
 * trailing "/s" is allowed. > 0. */
bool eni_parse_rate(const char *text, uint64_t *bytes_per_s_out);

/* ns us ms s min h; without a unit: seconds. */
bool eni_parse_duration(const char *text, int64_t *ns_out);

/* An amount of samples, "20000", or of epochs, as a negative number: "10epochs" is -10, converted to samples once the
 * epoch's size is known. And up to ENI_AMOUNTS_MAX rising ones separated by ',' or '+': returns how many, 0 if the text
 * is invalid. */
enum { ENI_AMOUNTS_MAX = 8 };
bool eni_parse_amount(const char *text, int64_t *amount_out);
int eni_parse_amounts(const char *text, int64_t amounts_out[ENI_AMOUNTS_MAX]);
uint64_t eni_amount_samples(int64_t amount, uint64_t epoch_samples);
void eni_format_amount(int64_t amount, char *text_out, size_t bytes);

/* "4", or "0-3": lo <= hi. */
bool eni_parse_range(const char *text, int32_t *lo_out, int32_t *hi_out);

/* Calls take(user, who, what) for each part of "WHO=WHAT;WHO=WHAT"; who is NULL where there is no '='. Returns NULL, or what
 * take has returned: the expected form. A part of more than 95 letters: `expected`. */
const char *eni_each_part(const char *text, const char *(*take)(void *user, char *who, const char *what),
                          void *user, const char *expected);

/* The shortest text that reads back as the same value: "2.5s". */
void eni_format_duration(int64_t ns, char *text_out, size_t bytes);

/* "rate:200MB,delay:50us", either alone, or "none": 0 is an unlimited rate or no delay. */
bool eni_net_parse(const char *text, uint64_t *bytes_per_s_out, int64_t *delay_ns_out);

/* "RANK@TIME", as "2@500ms": rank >= 1, time > 0. And "RANK:FACTOR", FACTOR in [1, 1000]. */
bool eni_visit_parse(const char *text, int64_t *rank_out, int64_t *at_ns_out);
bool eni_straggler_parse(const char *text, int64_t *rank_out, double *factor_out);

/* "rank0", "mean" or "recompute:N": N in 1 .. 2^32, else 0. */
bool eni_bn_stats_parse(const char *text, bool *is_mean_out, uint64_t *recompute_out);

/* "crop:SIDE[:PAD]", "flip", both separated by a comma, or "none". */
bool eni_augment_parse(const char *text, eni_transform *transform);

/* "MEAN:DEVIATION", or up to three of each separated by commas; deviations are above 0. */
bool eni_normalize_parse(const char *text, eni_transform *transform);

/* "SETTING:ARM:ARM", two arms numbered from 1; the outputs count from 0. Setting: less than 32 letters. */
bool eni_primary_parse(const char *text, char setting_out[32], int64_t *a_out, int64_t *b_out);

/* "lr=V1,V2,..": 2 to ENI_TUNE_MAX rising values above 0 of the one key that can be tuned; returns how many, 0 if the text is
 * invalid. */
enum { ENI_TUNE_MAX = 16 };
#define ENI_TUNED "lr"
int eni_tune_parse(const char *text, double values_out[ENI_TUNE_MAX]);

/* Length of the name in an arm's text: 5 of "tuned=ring:lr=0.1"; 0: it has no name, and its text serves as one. */
enum { ENI_ARM_NAME = 40 }; /* letters at most */
size_t eni_arm_name(const char *text);

#endif
