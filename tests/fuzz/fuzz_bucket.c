/* fuzz_bucket.c - any text as a page of a bucket's list, as a service's error, as its answer to an upload in parts, as a file of
 * keys, as a URL and as an endpoint. The first byte chooses. What is accepted is fit for a header, a log and a path. */
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "core/log.h"
#include "core/options.h"
#include "remote/bucket_keys.h"
#include "remote/listing.h"
#include "remote/url.h"
#include "tests/fuzz/must.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

static void as_listing(int kind, const char *xml, size_t bytes)
{
    eni_listing listing = {0};
    char why[64] = ""; /* shorter than some */
    /* Two pages: the second one lies behind the objects of the first. */
    for (int page = 0; page < 2; page++) {
        const size_t before = listing.n;
        const en_status st = eni_listing_add(&listing, kind, "", xml, bytes, why, sizeof why);
        must(st == EN_OK || (st == EN_EFORMAT && why[0] != '\0' && eni_is_text(why)));
        must(listing.n >= before && (page == 0 || st != EN_OK || listing.n == 2 * before));
        must(st != EN_OK || !listing.is_truncated || listing.token[0] != '\0');
        for (size_t i = before; st == EN_OK && i < listing.n; i++) {
            must(listing.object[i].key[0] != '\0' && strlen(listing.object[i].key) < ENI_REMOTE_KEY);
            must(eni_is_text(listing.object[i].etag) && listing.object[i].etag[0] != '\0');
            must(listing.object[i].size <= INT64_MAX);
        }
        if (st != EN_OK) break;
    }
    eni_listing_fini(&listing);
}

static void as_error(const char *xml, size_t bytes)
{
    eni_service_error error;
    char id[ENI_UPLOAD_ID];
    const bool has_begun = eni_upload_begun_read(xml, bytes, id), is_over = eni_upload_over_read(xml, bytes);
    must(has_begun == (id[0] != '\0') && eni_is_text(id) && !(has_begun && is_over));
    eni_service_error_read(xml, bytes, &error);
    must(eni_is_text(error.code) && eni_is_text(error.message) && eni_is_text(error.region));
}

static void as_keys(const char *text, size_t bytes)
{
    eni_keys keys = {0};
    eni_keys_parse(text, bytes, "default", &keys);
    const eni_keys first = keys;
    eni_keys_parse(text, bytes, "default", &keys); /* the first counts */
    must(strcmp(first.id, keys.id) == 0 && strcmp(first.secret, keys.secret) == 0);
    must(strcmp(first.token, keys.token) == 0 && strcmp(first.region, keys.region) == 0);
    must(strchr(keys.id, '\n') == NULL && strchr(keys.secret, '\n') == NULL &&
         strchr(keys.token, '\n') == NULL);
}

/* The line in front of the first newline is an endpoint, if there is one. */
static void as_url(char *text)
{
    eni_remote_url url;
    eni_remote_endpoint place;
    char written[3 * ENI_REMOTE_KEY + 1] = "", *line = strchr(text, '\n');
    if (line != NULL) *line++ = '\0';
    const bool has_endpoint = line != NULL;
    if (eni_remote_url_parse("--data", has_endpoint ? line : text, &url) != EN_OK) return;
    must(eni_is_url(has_endpoint ? line : text) && eni_is_text(url.key) && strlen(url.bucket) >= 3);
    must(eni_url_add(written, sizeof written, url.key, true));
    must(eni_url_decode(written) && strcmp(written, url.key) == 0);
    if (eni_remote_endpoint_find(&url, "--data-endpoint", has_endpoint ? text : NULL, NULL, &place) !=
            EN_OK &&
        eni_remote_endpoint_find(&url, "--data-endpoint", has_endpoint ? text : NULL, "r-1", &place) != EN_OK)
        return;
    must(place.host[0] != '\0' && place.region[0] != '\0' && strpbrk(place.host, "/@?# \r\n") == NULL);
    must(!place.is_plain || has_endpoint);
    must(!place.is_plain || strncmp(place.host, "127.", 4) == 0 ||
         strncasecmp(place.host, "localhost", 9) == 0 || strncmp(place.host, "[::1]", 5) == 0);
}

static void as_encoded(char *text)
{
    char written[4096] = "", again[4096];
    if (!eni_url_decode(text) || !eni_url_add(written, sizeof written, text, false)) return;
    strcpy(again, written);
    must(eni_url_decode(again) && strcmp(again, text) == 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    if (bytes == 0) return 0;
    const size_t n = bytes - 1;
    char *exact = malloc(n > 0 ? n : 1), *text = malloc(n + 1); /* without a 0 behind it, and with one */
    if (exact != NULL && text != NULL) {
        memcpy(exact, data + 1, n);
        memcpy(text, data + 1, n);
        text[n] = '\0';
        eni_log_set_level(-1);
        switch (data[0] % 6) {
        case 0: as_listing(ENI_S3, exact, n); break;
        case 1: as_listing(ENI_OSS, exact, n); break;
        case 2: as_error(exact, n); break;
        case 3: as_keys(exact, n); break;
        case 4: as_url(text); break;
        default: as_encoded(text);
        }
    }
    free(exact);
    free(text);
    return 0;
}
