/* listing.c - see listing.h. */
#include "remote/listing.h"

#include <ctype.h>
#include <errno.h>
#include <expat.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/memory.h"
#include "core/options.h"

enum { DEPTH = 8, TEXT = 3 * ENI_REMOTE_KEY };

/* The results wanted from a document, one of them. */
typedef struct wanted {
    bool *encoding;
    eni_listing *listing;
    bool is_url_encoded; /* its keys are */
    eni_service_error *error;
    char *upload_id;
} wanted;

/* The parser's position in one document, and the text of the current element. */
typedef struct reading {
    wanted to;
    XML_Parser parser;
    const char *why; /* why it was stopped; NULL if it was not */
    int depth;
    char name[DEPTH][32];
    char text[TEXT];
    size_t length;
    eni_object object;
    bool has_size;
} reading;

static void stop(reading *r, const char *why)
{
    if (r->why == NULL) r->why = why;
    XML_StopParser(r->parser, XML_FALSE);
}

static void XMLCALL begin_element(void *user, const XML_Char *name, const XML_Char **attributes)
{
    reading *r = user;
    (void)attributes;
    r->length = 0;
    if (r->depth == DEPTH) {
        stop(r, "it is nested deeper than any list of a bucket");
        return;
    }
    snprintf(r->name[r->depth++], sizeof r->name[0], "%.31s", name);
    if (r->depth == 2 && strcmp(name, "Contents") == 0) {
        r->object = (eni_object){0};
        r->has_size = false;
    }
}

static void XMLCALL add_text(void *user, const XML_Char *text, int length)
{
    reading *r = user;
    if (r->length + (size_t)length >= TEXT) {
        stop(r, "it has a longer text than any list of a bucket");
        return;
    }
    memcpy(r->text + r->length, text, (size_t)length);
    r->length += (size_t)length;
}

static void XMLCALL refuse_doctype(void *user, const XML_Char *name, const XML_Char *system,
                                   const XML_Char *public, int has_internal)
{
    (void)name, (void)system, (void)public, (void)has_internal;
    stop(user, "it has a DOCTYPE, which no list of a bucket has");
}

/* Copies a text, truncated, and without control characters. */
static void keep(char *into, size_t bytes, const char *text)
{
    snprintf(into, bytes, "%.*s", (int)bytes - 1, eni_is_text(text) ? text : "(not text)");
    for (size_t n = strlen(into); n > 0 && !eni_is_text(into);) /* truncated within a character */
        into[--n] = '\0';
}

static bool keep_whole(reading *r, char *into, size_t bytes, const char *what)
{
    if (r->length < bytes) {
        memcpy(into, r->text, r->length + 1);
        return true;
    }
    stop(r, what);
    return false;
}

static void end_object(reading *r)
{
    eni_listing *l = r->to.listing;
    if (r->object.key[0] == '\0' || r->object.etag[0] == '\0' || !r->has_size) {
        stop(r, "an object has no key, no ETag or no size");
        return;
    }
    if (l->n == ENI_LISTING_OBJECTS) {
        stop(r, "there are over 100,000 objects; give a longer prefix");
        return;
    }
    if (eni_grow((void **)&l->object, &l->room, l->n + 1, sizeof *l->object) == EN_OK)
        l->object[l->n++] = r->object;
    else
        stop(r, "out of memory");
}

bool eni_etag_set(char etag_out[ENI_ETAG], const char *text, size_t length)
{
    static const char quotes[] = "\"'";
    if (length > 2 && (text[0] == 'W' || text[0] == 'w') && text[1] == '/') text += 2, length -= 2;
    while (length > 0 && memchr(quotes, text[0], 2) != NULL)
        text++, length--;
    while (length > 0 && memchr(quotes, text[length - 1], 2) != NULL)
        length--;
    etag_out[0] = '\0';
    if (length == 0 || length + 3 > ENI_ETAG) return false;
    snprintf(etag_out, ENI_ETAG, "\"%.*s\"", (int)length, text);
    if (eni_is_text(etag_out) && strpbrk(etag_out, " \t") == NULL) return true;
    etag_out[0] = '\0';
    return false;
}

static void end_key(reading *r, char key_out[ENI_REMOTE_KEY])
{
    if (r->to.is_url_encoded && !eni_url_decode(r->text)) stop(r, "a key is not encoded as announced");
    r->length = strlen(r->text);
    keep_whole(r, key_out, ENI_REMOTE_KEY, "a key has over 1,024 bytes");
}

static void end_field(reading *r, const char *name)
{
    if (strcmp(name, "Key") == 0) {
        end_key(r, r->object.key);
    } else if (strcmp(name, "ETag") == 0) {
        if (r->length > 0 && !eni_etag_set(r->object.etag, r->text, r->length))
            stop(r, r->length + 3 > ENI_ETAG ? "an ETag is too long" : "an ETag is invalid");
    } else if (strcmp(name, "Size") == 0) {
        errno = 0;
        r->object.size = strtoull(r->text, NULL, 10);
        r->has_size = true;
        if (r->length == 0 || strspn(r->text, "0123456789") != r->length || errno != 0 ||
            r->object.size > ENI_OBJECT_MAX)
            stop(r, "a size is not a number");
    }
}

static void XMLCALL end_element(void *user, const XML_Char *name)
{
    reading *r = user;
    r->text[r->length] = '\0';
    if (r->depth == 2 && r->to.encoding != NULL && strcmp(name, "EncodingType") == 0) {
        *r->to.encoding = strcmp(r->text, "url") == 0;
    } else if (r->depth == 2 && r->to.error != NULL) {
        if (strcmp(name, "Code") == 0) keep(r->to.error->code, sizeof r->to.error->code, r->text);
        if (strcmp(name, "Message") == 0) keep(r->to.error->message, sizeof r->to.error->message, r->text);
        if (strcmp(name, "Region") == 0) keep(r->to.error->region, sizeof r->to.error->region, r->text);
    } else if (r->depth == 2 && r->to.upload_id != NULL) {
        if (strcmp(name, "UploadId") == 0)
            keep_whole(r, r->to.upload_id, ENI_UPLOAD_ID, "its id is too long");
    } else if (r->depth == 2 && r->to.listing != NULL) {
        if (strcmp(name, "IsTruncated") == 0) r->to.listing->is_truncated = strcmp(r->text, "true") == 0;
        if (strcmp(name, "NextContinuationToken") == 0)
            keep_whole(r, r->to.listing->token, sizeof r->to.listing->token,
                       "the token of its next page is too long");
        if (strcmp(name, "Contents") == 0) end_object(r);
    } else if (r->depth == 3 && r->to.listing != NULL && strcmp(r->name[1], "Contents") == 0) {
        end_field(r, name);
    } else if (r->depth == 3 && r->to.listing != NULL && strcmp(r->name[1], "CommonPrefixes") == 0 &&
               strcmp(name, "Prefix") == 0 && r->to.listing->folder[0] == '\0') {
        end_key(r, r->to.listing->folder);
    }
    r->length = 0;
    r->depth--;
}

static const char no_memory[] = "out of memory";

/* Parses all of it; returns the clause that says what is wrong, or NULL. Skips leading blanks, which kept a
 * connection alive. */
static const char *parse(wanted to, const char *root, const char *xml, size_t bytes)
{
    reading *r = eni_alloc(sizeof *r);
    if (r != NULL) *r = (reading){.to = to, .parser = XML_ParserCreate("UTF-8")};
    if (r == NULL || r->parser == NULL) {
        eni_free(r);
        return no_memory;
    }
    while (bytes > 0 && isspace((unsigned char)*xml))
        xml++, bytes--;
    XML_SetUserData(r->parser, r);
    XML_SetElementHandler(r->parser, begin_element, end_element);
    XML_SetCharacterDataHandler(r->parser, add_text);
    XML_SetStartDoctypeDeclHandler(r->parser, refuse_doctype);
    const bool is_read = XML_Parse(r->parser, xml, (int)bytes, XML_TRUE) == XML_STATUS_OK;
    const char *why = r->why != NULL ? r->why : is_read ? NULL : XML_ErrorString(XML_GetErrorCode(r->parser));
    XML_ParserFree(r->parser);
    if (why == NULL && strcmp(r->name[0], root) != 0) why = "it is another document";
    eni_free(r);
    return why;
}

/* Callers skip the prefix of a key. */
static bool all_begin_with(const eni_listing *listing, const char *prefix)
{
    const size_t length = strlen(prefix);
    for (uint32_t i = 0; i < listing->n; i++)
        if (strncmp(listing->object[i].key, prefix, length) != 0) return false;
    return listing->folder[0] == '\0' || strncmp(listing->folder, prefix, length) == 0;
}

en_status eni_listing_add(eni_listing *listing, int kind, const char *prefix, const char *xml, size_t bytes,
                          char *why_out, size_t why_bytes)
{
    bool is_url_encoded = false; /* may come after the keys */
    const char *why = parse((wanted){.encoding = &is_url_encoded}, "ListBucketResult", xml, bytes);
    listing->is_truncated = false;
    listing->token[0] = '\0';
    const wanted to = {.listing = listing, .is_url_encoded = is_url_encoded};
    /* The second pass has the better message for anything else that is wrong. */
    if (why != no_memory) why = parse(to, "ListBucketResult", xml, bytes);
    /* OSS encodes it like keys ("GetBucketV2 (ListObjectsV2)", EncodingType); S3 does not. */
    if (why == NULL && is_url_encoded && kind == ENI_OSS && !eni_url_decode(listing->token))
        why = "the token of its next page is not encoded as announced";
    if (why == NULL && listing->is_truncated && listing->token[0] == '\0')
        why = "it is truncated, but has no token for the next page";
    if (why == NULL && !all_begin_with(listing, prefix))
        why = "it has keys that do not begin with its prefix";
    if (why != NULL) snprintf(why_out, why_bytes, "%s", why);
    return why == NULL ? EN_OK : EN_EFORMAT;
}

void eni_listing_fini(eni_listing *listing)
{
    eni_free(listing->object);
    *listing = (eni_listing){0};
}

void eni_service_error_read(const char *xml, size_t bytes, eni_service_error *error_out)
{
    *error_out = (eni_service_error){{0}, {0}, {0}};
    if (parse((wanted){.error = error_out}, "Error", xml, bytes) != NULL)
        *error_out = (eni_service_error){{0}, {0}, {0}};
}

bool eni_upload_begun_read(const char *xml, size_t bytes, char id_out[ENI_UPLOAD_ID])
{
    id_out[0] = '\0';
    const char *why = parse((wanted){.upload_id = id_out}, "InitiateMultipartUploadResult", xml, bytes);
    if (why == NULL && id_out[0] != '\0' && eni_is_text(id_out)) return true;
    id_out[0] = '\0';
    return false;
}

bool eni_upload_over_read(const char *xml, size_t bytes)
{
    return parse((wanted){0}, "CompleteMultipartUploadResult", xml, bytes) == NULL;
}
