/* main.c - the program `transfer`, which other programs start (transfer.h) to access object storage:
 *
 *     transfer fetch  -- URL NAME..       files of these names below the URL, into the cache
 *     transfer get    -- URL              one object, into the cache
 *     transfer newest -- URL FOLDER       the newest checkpoint below the URL, into FOLDER
 *     transfer list   -- URL              a table of the objects
 *     transfer mirror --file=F --as=URL --folder=DIR --into=URL      uploads files that appear there
 *     transfer clear                      the cache
 *
 * The path of a download goes to descriptor 3, followed by a 0. No process can attach to this one, or get its
 * core. */
#include <getopt.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

#include "core/log.h"
#include "core/memory.h"
#include "core/options.h"
#include "core/signals.h"
#include "core/try.h"
#include "remote/cache.h"
#include "remote/session.h"

/* ---- a table ---- */

static void print_object(const eni_object *object, double *bytes)
{
    char size[32];
    eni_text_grouped((double)object->size, ",", size, sizeof size);
    printf("%16s  %s\n", size, eni_is_text(object->key) ? object->key : "(a key that is not text)");
    *bytes += (double)object->size;
}

/* "data" stands for the object with that key and the folder "data/", but not for "data-old/". */
static en_status print_list(const eni_transfer_options *o, const char *url)
{
    eni_session s;
    eni_listing listing = {0};
    eni_object single;
    char prefix[ENI_REMOTE_KEY + 1] = "";
    double bytes = 0;
    en_status st = eni_session_open(o, "entrain data", url, &s), asked = EN_ENOENT;
    if (st == EN_OK) eni_session_prefix(&s, prefix);
    if (st == EN_OK && strcmp(prefix, s.url.key) != 0) asked = eni_remote_head(s.bucket, s.url.key, &single);
    if (st == EN_OK && asked != EN_ENOENT && asked != EN_EDENIED) st = asked;
    if (st == EN_OK) st = eni_remote_list(s.bucket, prefix, asked == EN_OK ? ENI_LIST_ASK : 0, &listing);
    if (st == EN_EDENIED)
        eni_warn("remote", "%s: these keys may not list the bucket, so only this object is shown", url);
    if (st == EN_EDENIED) st = EN_OK;
    if (st == EN_OK && asked == EN_OK) print_object(&single, &bytes);
    for (size_t i = 0; st == EN_OK && i < listing.n; i++)
        print_object(&listing.object[i], &bytes);
    const size_t n = listing.n + (asked == EN_OK ? 1 : 0);
    if (st == EN_OK) printf("%zu object%s, %.1f MB\n", n, n == 1 ? "" : "s", bytes * 1e-6);
    if (st == EN_OK && n == 0 && asked == EN_EDENIED)
        eni_warn("remote", "%s: these keys may not read an object of this name, so it may exist nevertheless",
                 url);
    eni_listing_fini(&listing);
    eni_session_close(&s);
    return st;
}

static en_status clear(const eni_transfer_options *o)
{
    uint64_t bytes;
    EN_TRY(eni_cache_clear(o->cache, &bytes));
    printf("%s: %.1f MB removed\n", o->cache, (double)bytes * 1e-6);
    return EN_OK;
}

/* ---- */

static en_status dispatch(const eni_transfer_options *o, const char *verb, int n, char **rest)
{
    if (strcmp(verb, "fetch") == 0 && n > 1) return eni_download(o, rest[0], rest + 1, n - 1);
    if (strcmp(verb, "get") == 0 && n == 1) return eni_download(o, rest[0], NULL, 0);
    if (strcmp(verb, "newest") == 0 && n == 2) return eni_download_newest(o, rest[0], rest[1]);
    if (strcmp(verb, "list") == 0 && n == 1) return print_list(o, rest[0]);
    if (strcmp(verb, "mirror") == 0 && n == 0) return eni_mirror(o);
    if (strcmp(verb, "clear") == 0 && n == 0) return clear(o);
    return eni_fail(EN_EINVAL, "remote",
                    "transfer is started by entrain and worker: use entrain run --data=s3://BUCKET/PREFIX");
}

int main(int argc, char **argv)
{
    enum { CACHE, ENDPOINT, KEYS, FLAG, FILE_OF, AS, FOLDER, INTO, TEXTS };
    static const struct option known[] = {
        {"cache", required_argument, NULL, CACHE},   {"endpoint", required_argument, NULL, ENDPOINT},
        {"keys", required_argument, NULL, KEYS},     {"flag", required_argument, NULL, FLAG},
        {"file", required_argument, NULL, FILE_OF},  {"as", required_argument, NULL, AS},
        {"folder", required_argument, NULL, FOLDER}, {"into", required_argument, NULL, INTO},
        {"log-level", required_argument, NULL, 'l'}, {"put-max", required_argument, NULL, 'm'},
        {"part", required_argument, NULL, 'p'},      {"quiet", no_argument, NULL, 'q'},
        {"resumes", no_argument, NULL, 'r'},         {NULL, 0, NULL, 0}};
    eni_transfer_options o = {.cache = "", .sizes = {ENI_PUT_MAX, ENI_PART_BYTES}};
    const char **const text[TEXTS] = {&o.cache, &o.endpoint, &o.keys,   &o.flag,
                                      &o.file,  &o.as,       &o.folder, &o.into};
    prctl(PR_SET_DUMPABLE, 0);
    signal(SIGXFSZ, SIG_IGN);
    for (int c; (c = getopt_long(argc, argv, "", known, NULL)) != -1;) {
        if (c >= 0 && c < TEXTS) *text[c] = optarg;
        if (c == 'l') eni_log_set_level(atoi(optarg));
        if (c == 'q') o.is_quiet = true;
        if (c == 'r') o.resumes = true;
        if (c == 'm') o.sizes.put_max = strtoull(optarg, NULL, 10); /* for tests */
        if (c == 'p') o.sizes.part = strtoull(optarg, NULL, 10);
        if (c == '?') return 2;
    }
    if (optind >= argc) return dispatch(&o, "", 0, argv) == EN_OK ? 0 : 2;
    const int code =
        eni_signals_exit_code(dispatch(&o, argv[optind], argc - optind - 1, argv + optind + 1), -1);
    return fflush(stdout) == 0 ? code : 1;
}
