/* listing.h - a service's answers in XML: a page of a bucket's list, an upload in parts, or an error. Parsed
 * by expat, under limits, since the server at that address may be anybody's.
 *
 *     <ListBucketResult>  <IsTruncated>, <NextContinuationToken>, <Contents> of <Key>, <Size>, <ETag>,
 *                         <CommonPrefixes> of <Prefix>
 *     <Error>             <Code>, <Message>, <Region>, <ServerTime>
 *     <InitiateMultipartUploadResult>  <UploadId>
 *     <CompleteMultipartUploadResult>  its contents are not used
 *
 * Any thread. */
#ifndef REMOTE_LISTING_H
#define REMOTE_LISTING_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "remote/url.h"

enum { ENI_ETAG = 130, ENI_UPLOAD_ID = 1024, ENI_LISTING_TOKEN = 1024, ENI_LISTING_OBJECTS = 100000 };

/* Bytes: no service has larger objects, and our sums cannot overflow. */
#define ENI_OBJECT_MAX (UINT64_C(1) << 50)

typedef struct eni_object {
    char key[ENI_REMOTE_KEY];
    char etag[ENI_ETAG]; /* by eni_etag_set */
    uint64_t size;
} eni_object;

/* Normalises an ETag to "\"TEXT\"": services write an object's with and without quotes, and proxies may put
 * W/ in front. False, and "": it is empty, too long or not text. */
bool eni_etag_set(char etag_out[ENI_ETAG], const char *text, size_t length);

typedef struct eni_listing {
    eni_object *object;
    uint32_t n, room;
    bool is_truncated;
    char token[ENI_LISTING_TOKEN]; /* of the next page */
    char folder[ENI_REMOTE_KEY];   /* the first deeper folder, or "", in a list without those */
} eni_listing;

/* Adds the objects of a page of such a service (url.h) to those of the pages before, and sets what follows. All
 * keys begin with the prefix that was asked for. EN_EFORMAT, with a clause in why_out ("it has a DOCTYPE"). The
 * caller finis in any case. */
en_status eni_listing_add(eni_listing *listing, int kind, const char *prefix, const char *xml, size_t bytes,
                          char *why_out, size_t why_bytes);
void eni_listing_fini(eni_listing *listing); /* safe on zeroed memory */

typedef struct eni_service_error {
    char code[64], message[256], region[ENI_REGION];
} eni_service_error;

/* Reads as much as possible; the texts are fit for a log. */
void eni_service_error_read(const char *xml, size_t bytes, eni_service_error *error_out);

/* Reads the id of an upload in parts, and whether one is complete. False: another document, or no id. */
bool eni_upload_begun_read(const char *xml, size_t bytes, char id_out[ENI_UPLOAD_ID]);
bool eni_upload_over_read(const char *xml, size_t bytes);

#endif
