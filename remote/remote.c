/* remote.c - see remote.h. */
#include "remote/remote.h"

#include <stdio.h>
#include <string.h>

#include "core/log.h"
#include "core/memory.h"
#include "core/try.h"
#include "remote/remote_call.h"

enum { PAGES = 2 * ENI_LISTING_OBJECTS / 1000 };
#define PAGE_OBJECTS "1000" /* the most that both allow; the default of OSS is 100 */

static en_status list_page(eni_remote *b, const char *prefix, unsigned how, eni_listing *listing)
{
    char why[128] = "";
    eni_remote_call *c;
    en_status st = eni_remote_call_begin(b, "GET", "", &c);
    if (st != EN_OK) return st;
    if (!(eni_remote_call_query(c, "continuation-token", listing->token) &&
          eni_remote_call_query(c, "delimiter", (how & ENI_LIST_FLAT) != 0 ? "/" : "") &&
          eni_remote_call_query(c, "encoding-type", "url") && eni_remote_call_query(c, "list-type", "2") &&
          eni_remote_call_query(c, "max-keys", PAGE_OBJECTS) && eni_remote_call_query(c, "prefix", prefix)))
        st = eni_fail(EN_EINVAL, "remote", "the prefix %.100s.. is too long", prefix);
    c->is_ask = (how & ENI_LIST_ASK) != 0;
    if (st == EN_OK) st = eni_remote_call_perform(c);
    if (st == EN_OK)
        st = eni_listing_add(listing, b->o.url->kind, prefix, c->text, c->length, why, sizeof why);
    if (st == EN_EFORMAT)
        eni_error("remote", "%s sent an invalid list of %s://%s: %s", b->o.place->host,
                  eni_url_scheme(b->o.url->kind), b->o.url->bucket, why);
    return eni_remote_call_end(c, st);
}

en_status eni_remote_list(eni_remote *bucket, const char *prefix, unsigned how, eni_listing *listing_out)
{
    *listing_out = (eni_listing){0};
    en_status st = list_page(bucket, prefix, how, listing_out);
    for (int page = 1; st == EN_OK && listing_out->is_truncated; page++) {
        st = page < PAGES
                 ? list_page(bucket, prefix, how, listing_out)
                 : eni_fail(EN_EFORMAT, "remote", "%s: the list does not end", bucket->o.place->host);
    }
    if (st != EN_OK) eni_listing_fini(listing_out);
    return st;
}

en_status eni_remote_ask(eni_remote *bucket, const char *prefix)
{
    eni_listing listing = {0};
    const unsigned how = bucket->o.keys->is_none ? 0 : ENI_LIST_ASK; /* without keys none may write */
    const en_status st = list_page(bucket, prefix, ENI_LIST_FLAT | how, &listing);
    eni_listing_fini(&listing);
    return st;
}

en_status eni_remote_head(eni_remote *bucket, const char *key, eni_object *object_out)
{
    eni_remote_call *c;
    *object_out = (eni_object){.size = 0};
    EN_TRY(eni_remote_call_begin(bucket, "HEAD", key, &c));
    c->is_head = true;
    en_status st = eni_remote_call_perform(c);
    object_out->size = c->length_told;
    snprintf(object_out->key, sizeof object_out->key, "%s", key);
    memcpy(object_out->etag, c->etag, sizeof object_out->etag);
    if (st == EN_OK && (c->etag[0] == '\0' || c->length_told > ENI_OBJECT_MAX))
        st = eni_fail(EN_EFORMAT, "remote", "%s did not send both ETag and size of %s", bucket->o.place->host,
                      key);
    return eni_remote_call_end(c, st);
}

en_status eni_remote_get(eni_remote *bucket, const eni_object *object, int fd, uint64_t *have_inout,
                         void (*on_have)(void *user, uint64_t have), void *user)
{
    eni_remote_call *c;
    if (*have_inout == object->size && object->size > 0) return EN_OK;
    EN_TRY(eni_remote_call_begin(bucket, "GET", object->key, &c));
    c->object = object;
    c->fd = fd;
    c->have = *have_inout;
    c->on_have = on_have;
    c->user = user;
    const en_status st = eni_remote_call_perform(c);
    *have_inout = c->have;
    return eni_remote_call_end(c, st);
}

en_status eni_remote_open(const eni_remote_options *options, eni_remote **bucket_out)
{
    eni_remote *b = eni_alloc(sizeof *b);
    if (b == NULL) return EN_ENOMEM;
    b->o = *options;
    b->curl = curl_global_init(CURL_GLOBAL_DEFAULT) == CURLE_OK ? curl_easy_init() : NULL;
    if (b->curl == NULL) {
        eni_free(b);
        return eni_fail(EN_ENOMEM, "remote", "cannot initialise libcurl");
    }
    *bucket_out = b;
    return EN_OK;
}

void eni_remote_close(eni_remote *bucket)
{
    if (bucket == NULL) return;
    curl_easy_cleanup(bucket->curl);
    curl_global_cleanup();
    eni_free(bucket);
}
