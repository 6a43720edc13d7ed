/* session.c - a bucket with its keys, its progress, and messages to our parent. */
#include "remote/session.h"

#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "config/env.h"
#include "core/checkpoint_name.h"
#include "core/clock.h"
#include "core/digest.h"
#include "core/log.h"
#include "core/try.h"

enum { TICK_MS = 100, LINE_MS = 5000 };

/* ---- progress ---- */

void eni_session_show(eni_progress *p, bool is_last)
{
    const double seconds = (double)(eni_now_ns() - p->begin_ns) * 1e-9;
    const double rate = seconds > 0 ? (double)(p->done - p->done_before) / seconds : 0;
    const double left = rate > 0 ? (double)(p->total - p->done) / rate : 0;
    char text[400];
    snprintf(text, sizeof text, "%s: %3.0f %% of %.1f MB, %.1f MB/s, %.0f s left", p->url,
             p->total > 0 ? 100 * (double)p->done / (double)p->total : 100.0, (double)p->total * 1e-6,
             rate * 1e-6, left);
    if (p->is_tty)
        fprintf(stderr, "\r%s\033[K%s", text, is_last ? "\n" : "");
    else if (!is_last)
        eni_info("remote", "%s", text);
    p->shown_ns = eni_now_ns();
}

/* Negative when a service begins again. */
static void on_bytes(void *user, int64_t more)
{
    eni_progress *p = user;
    p->done += (uint64_t)more;
    const int64_t every = (p->is_tty ? TICK_MS : LINE_MS) * (ENI_SECOND / 1000);
    if (!p->is_quiet && p->total > 0 && eni_now_ns() - p->shown_ns > every) eni_session_show(p, false);
}

static void on_sign(void *user)
{
    eni_progress *p = user;
    if (!p->has_signs || eni_now_ns() - p->sign_ns < TICK_MS * (ENI_SECOND / 1000)) return;
    p->sign_ns = eni_now_ns();
    (void)!write(ENI_ANSWER_FD, ".", 1); /* a full pipe is a sign of life, too */
}

static bool is_stopped(void *user)
{
    const eni_progress *p = user;
    struct pollfd orders = {STDIN_FILENO, 0, 0};
    return p->has_orders && poll(&orders, 1, 0) == 1 && (orders.revents & POLLHUP) != 0;
}

/* ---- a bucket, with its keys ---- */

en_status eni_session_open(const eni_transfer_options *o, const char *flag, const char *text, eni_session *s)
{
    *s = (eni_session){.sizes = o->sizes,
                       .progress = {.is_quiet = o->is_quiet,
                                    .is_tty = isatty(STDERR_FILENO) != 0,
                                    .has_orders = o->as != NULL || o->into != NULL}};
    snprintf(s->progress.url, sizeof s->progress.url, "%.199s", text);
    EN_TRY(eni_remote_url_parse(flag, text, &s->url));
    EN_TRY(eni_keys_find(s->url.kind, o->keys, eni_env, &s->keys));
    s->endpoint = o->endpoint != NULL ? o->endpoint : s->keys.endpoint[0] != '\0' ? s->keys.endpoint : NULL;
    EN_TRY(eni_remote_endpoint_find(&s->url, o->endpoint != NULL ? "--data-endpoint" : s->keys.endpoint_by,
                                    s->endpoint, s->keys.region[0] != '\0' ? s->keys.region : NULL,
                                    &s->place));
    const eni_remote_options bucket = {.url = &s->url,
                                       .place = &s->place,
                                       .keys = &s->keys,
                                       .ca_file = eni_env("AWS_CA_BUNDLE"),
                                       .on_bytes = on_bytes,
                                       .on_sign = on_sign,
                                       .is_stopped = is_stopped,
                                       .user = &s->progress};
    return eni_remote_open(&bucket, &s->bucket);
}

void eni_session_close(eni_session *s)
{
    eni_remote_close(s->bucket);
    eni_wipe(&s->keys, sizeof s->keys);
}

void eni_session_prefix(const eni_session *s, char prefix_out[ENI_REMOTE_KEY + 1])
{
    const size_t length = strlen(s->url.key);
    snprintf(prefix_out, ENI_REMOTE_KEY + 1, "%.*s%s", ENI_REMOTE_KEY - 1, s->url.key,
             length == 0 || s->url.key[length - 1] == '/' ? "" : "/");
}

en_status eni_session_answer(const char *path)
{
    const size_t bytes = strlen(path) + 1;
    return write(ENI_ANSWER_FD, path, bytes) == (ssize_t)bytes ? EN_OK : EN_EIO;
}

const eni_object *eni_session_newest(const eni_listing *listing, const char *prefix, uint64_t least)
{
    const eni_object *newest = NULL;
    uint64_t samples;
    for (size_t i = 0; i < listing->n; i++)
        if (eni_checkpoint_is(listing->object[i].key + strlen(prefix), &samples) && samples >= least)
            newest = &listing->object[i], least = samples;
    return newest;
}
