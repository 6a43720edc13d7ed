/* upload.h - makes a file of this host an object: by one PUT, or in parts where it is larger than one request may be.
 *
 *     POST    KEY?uploads                     the service gives the upload an id
 *     PUT     KEY?partNumber=N&uploadId=ID    part N; the service gives its ETag
 *     POST    KEY?uploadId=ID                 numbers and ETags of all parts: from now on they are the object, all at once
 *     DELETE  KEY?uploadId=ID                 instead of that: the parts are gone
 *
 * Source: "Uploading and copying objects using multipart upload" (Amazon S3 User Guide), "Multipart upload" (Alibaba Cloud,
 * OSS Developer Guide). Until the last POST the bucket has what it had under the key. What can fail before it is answered:
 *
 *  - A part: it is tried again as any PUT is, and the parts before it count. When the tries are over, or it is refused, the
 *    upload is deleted.
 *  - Nobody waits any more (eni_remote_options.is_stopped): the request under way is cut, and the upload deleted.
 *  - This process is killed, or the service is gone for the DELETE too: the parts stay, and are paid for. Their id is noted
 *    in an extended attribute of the file, and the next upload of this file deletes them first. Where the file has none, or
 *    goes nowhere again, a rule of the bucket must (AbortIncompleteMultipartUpload).
 *  - The answer to the first POST is lost: it is tried again. What stays has no part, and costs nothing.
 *  - The last POST: a service may say 200, send blanks for minutes, and then an <Error>. InternalError and the like are
 *    tried again, as 500 is. Where an answer was lost, and the next one is NoSuchUpload, the upload is complete or somebody
 *    has deleted it: complete, if the object has another ETag than before.
 *
 * At the end the size of the object is compared, where it may be asked for. Its ETag says nothing of its bytes: it is not
 * the MD5 of an object in parts. They are guarded as those of one PUT are: S3 checks the SHA-256 of each part, OSS has TLS. */
#ifndef REMOTE_UPLOAD_H
#define REMOTE_UPLOAD_H

#include "remote/remote.h"

/* Of both services ("Amazon S3 multipart upload limits"; "Multipart upload", OSS). Parts have 5 MiB at least, but for the
 * last. Ours have more: a request costs a round trip, a part that fails is sent again. */
#define ENI_PUT_MAX    (UINT64_C(5) << 30) /* bytes of one request */
#define ENI_PART_BYTES (UINT64_C(128) << 20)
enum { ENI_PARTS_MAX = 10000 };

/* From how many bytes on a file goes in parts, and how many a part has. Tests have less. */
typedef struct eni_upload_sizes {
    uint64_t put_max, part;
} eni_upload_sizes;

/* Bytes of each part but the last: `least`, or as many as it takes that there are no more than ENI_PARTS_MAX. */
uint64_t eni_upload_part(uint64_t bytes, uint64_t least);

/* Makes the first `bytes` of a file the object of that key. Blocks; shows signs of life (remote.h). EN_EINVAL, EN_EIO: as
 * remote.h; EN_EUNSUPPORTED: more than 10,000 parts of 5 GiB; EN_EINTR, not logged: is_stopped. */
en_status eni_upload(eni_remote *bucket, const char *key, int fd, uint64_t bytes,
                     const eni_upload_sizes *sizes);

#endif
