/* upload.h - makes a file of this host an object: by one PUT, or in parts if it is too large for one request.
 *
 *     POST    KEY?uploads                     the service returns an id for the upload
 *     PUT     KEY?partNumber=N&uploadId=ID    part N; the service returns its ETag
 *     POST    KEY?uploadId=ID                 numbers and ETags of all parts: together they become the object
 *     DELETE  KEY?uploadId=ID                 instead of that: the parts are gone
 *
 * Source: "Uploading and copying objects using multipart upload" (Amazon S3 User Guide), "Multipart upload"
 * (Alibaba Cloud, OSS Developer Guide). Until the last POST the object under the key is unchanged. Failures
 * before it is answered:
 *
 *  - A part fails: it is tried again like any PUT, and the parts before it count. When the tries are used up,
 *    or it is refused, the upload is deleted.
 *  - The caller stops (eni_remote_options.is_stopped): the request is aborted, and the upload deleted.
 *  - This process is killed, or the service is gone for the DELETE too: the parts stay, and cost money. Their
 *    id is kept in an extended attribute of the file, and the next upload of this file deletes them first. If
 *    the file has no such attribute, or is never uploaded again, a rule of the bucket must delete them
 *    (AbortIncompleteMultipartUpload).
 *  - The answer to the first POST is lost: it is tried again. The abandoned upload has no parts and is free.
 *  - The last POST: a service may say 200, send blanks for minutes, and then an <Error>. InternalError and
 *    similar ones are tried again, like a 500. If an answer was lost, and the next one is NoSuchUpload, the
 *    upload is complete or somebody has deleted it: complete, if the object has another ETag than before.
 *
 * At the end the size of the object is compared, if it may be read. Its ETag does not prove its bytes: for an
 * object in parts it is not the MD5. They are protected like those of one PUT: S3 checks the SHA-256 of each
 * part, OSS has TLS. */
#ifndef REMOTE_UPLOAD_H
#define REMOTE_UPLOAD_H

#include "remote/remote.h"

/* Limits of both services ("Amazon S3 multipart upload limits"; "Multipart upload", OSS). Parts have at least
 * 5 MiB, except for the last. Ours have more: a request costs a round trip, a failed part is sent again. */
#define ENI_PUT_MAX    (UINT64_C(5) << 30) /* bytes of one request */
#define ENI_PART_BYTES (UINT64_C(128) << 20)
enum { ENI_PARTS_MAX = 10000 };

/* The size above which a file is sent in parts, and the size of a part. Tests use less. */
typedef struct eni_upload_sizes {
    uint64_t put_max, part;
} eni_upload_sizes;

/* Bytes of each part but the last: `least`, or enough for at most ENI_PARTS_MAX parts. */
uint64_t eni_upload_part(uint64_t bytes, uint64_t least);

/* Makes the first `bytes` of a file the object with that key. Blocks; gives signs of life (remote.h).
 * EN_EINVAL, EN_EIO: as remote.h; EN_EUNSUPPORTED: more than 10,000 parts of 5 GiB; EN_EINTR, not logged:
 * is_stopped. */
en_status eni_upload(eni_remote *bucket, const char *key, int fd, uint64_t bytes,
                     const eni_upload_sizes *sizes);

#endif
