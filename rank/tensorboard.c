/* tensorboard.c - see tensorboard.h. */
#include "rank/tensorboard.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "config/folders.h"
#include "core/clock.h"
#include "core/crc32c.h"
#include "core/log.h"
#include "core/memory.h"
#include "core/try.h"

static const int64_t flush_ns = 2 * ENI_SECOND;

struct eni_tensorboard {
    FILE *file;
    char path[1024];
    double start; /* seconds since 1970 at the training clock's 0 */
    int64_t flushed_ns;
    uint64_t samples; /* at the last step that was shown */
    double t;
};

/* ---- protocol buffers, as much as a scalar needs ------------------------------------------------------- */

enum { VARINT = 0, FIXED64 = 1, BYTES = 2, FIXED32 = 5 }; /* wire types */

/* A message being encoded. The largest holds six scalars with short tags. */
typedef struct proto {
    uint8_t byte[512];
    size_t n;
} proto;

static void put_varint(proto *p, uint64_t value)
{
    for (; value >= 0x80; value >>= 7)
        p->byte[p->n++] = (uint8_t)(value | 0x80);
    p->byte[p->n++] = (uint8_t)value;
}

static void put_key(proto *p, unsigned field, unsigned type)
{
    put_varint(p, field << 3 | type);
}

static void put_bytes(proto *p, unsigned field, const void *bytes, size_t n)
{
    put_key(p, field, BYTES);
    put_varint(p, n);
    memcpy(p->byte + p->n, bytes, n);
    p->n += n;
}

static void put_double(proto *p, unsigned field, double value)
{
    put_key(p, field, FIXED64);
    memcpy(p->byte + p->n, &value, sizeof value); /* little endian, as everywhere in Entrain */
    p->n += sizeof value;
}

static void put_float(proto *p, unsigned field, float value)
{
    put_key(p, field, FIXED32);
    memcpy(p->byte + p->n, &value, sizeof value);
    p->n += sizeof value;
}

/* Fields of event.proto and summary.proto. */
enum { EVENT_WALL_TIME = 1, EVENT_STEP = 2, EVENT_VERSION = 3, EVENT_SUMMARY = 5, EVENT_SESSION = 7 };
enum { SUMMARY_VALUE = 1, VALUE_TAG = 1, VALUE_SIMPLE = 2, SESSION_STATUS = 1, SESSION_START = 1 };

static void begin_event(proto *event, double wall_time, uint64_t step)
{
    event->n = 0;
    put_double(event, EVENT_WALL_TIME, wall_time);
    put_key(event, EVENT_STEP, VARINT);
    put_varint(event, step);
}

static void put_scalar(proto *summary, const char *tag, double value)
{
    proto scalar = {.n = 0};
    put_bytes(&scalar, VALUE_TAG, tag, strlen(tag));
    put_float(&scalar, VALUE_SIMPLE, (float)value);
    put_bytes(summary, SUMMARY_VALUE, scalar.byte, scalar.n);
}

/* ---- records ------------------------------------------------------------------------------------------- */

/* A CRC of data that holds CRCs is weak, so TensorFlow's files rotate and shift them. */
static uint32_t masked_crc(const void *bytes, size_t n)
{
    uint32_t crc = eni_crc32c(0, bytes, n);
    return (crc >> 15 | crc << 17) + 0xa282ead8u;
}

static void write_record(const eni_tensorboard *board, const proto *event)
{
    uint64_t length = event->n;
    uint32_t of_length = masked_crc(&length, sizeof length), of_data = masked_crc(event->byte, event->n);
    fwrite(&length, sizeof length, 1, board->file);
    fwrite(&of_length, sizeof of_length, 1, board->file);
    fwrite(event->byte, event->n, 1, board->file);
    fwrite(&of_data, sizeof of_data, 1, board->file);
}

static void write_summary(const eni_tensorboard *board, double t, uint64_t samples, const proto *summary)
{
    proto event;
    begin_event(&event, board->start + t, samples);
    put_bytes(&event, EVENT_SUMMARY, summary->byte, summary->n);
    write_record(board, &event);
}

static void write_head(const eni_tensorboard *board, uint64_t resumed)
{
    static const char version[] = "brain.Event:2";
    proto event, session = {.n = 0};
    begin_event(&event, board->start, 0);
    put_bytes(&event, EVENT_VERSION, version, sizeof version - 1);
    write_record(board, &event);
    if (resumed == 0) return;
    put_key(&session, SESSION_STATUS, VARINT);
    put_varint(&session, SESSION_START);
    begin_event(&event, board->start, resumed);
    put_bytes(&event, EVENT_SESSION, session.byte, session.n);
    write_record(board, &event);
}

/* ---- calls --------------------------------------------------------------------------------------------- */

en_status eni_tensorboard_open(const char *folder, uint64_t resumed, eni_tensorboard **board_out)
{
    struct timespec now;
    char host[256] = "host";
    EN_TRY(eni_folder_check("--tensorboard", folder));
    eni_tensorboard *board = eni_alloc(sizeof *board);
    if (board == NULL) return EN_ENOMEM;
    gethostname(host, sizeof host - 1);
    clock_gettime(CLOCK_REALTIME, &now);
    snprintf(board->path, sizeof board->path, "%s/events.out.tfevents.%010lld.%.100s.%d", folder,
             (long long)now.tv_sec, host, (int)getpid());
    board->file = fopen(board->path, "we");
    if (board->file == NULL) {
        eni_error("board", "--tensorboard: cannot create %s: %s", board->path, strerror(errno));
        eni_free(board);
        return EN_EIO;
    }
    board->start = (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
    board->flushed_ns = eni_now_ns();
    board->samples = resumed;
    write_head(board, resumed);
    *board_out = board;
    return EN_OK;
}

void eni_tensorboard_step(eni_tensorboard *board, const eni_step *s)
{
    if (board == NULL) return;
    proto summary = {.n = 0};
    put_scalar(&summary, "train/loss", (double)s->loss);
    if (s->nsamples > 0) put_scalar(&summary, "train/accuracy", (double)s->correct / (double)s->nsamples);
    put_scalar(&summary, "train/lr", (double)s->lr);
    if (s->staleness > 0) put_scalar(&summary, "train/staleness", s->staleness);
    if (s->t > board->t && s->samples > board->samples)
        put_scalar(&summary, "train/samples_per_s",
                   (double)(s->samples - board->samples) / (s->t - board->t));
    write_summary(board, s->t, s->samples, &summary);
    board->samples = s->samples;
    board->t = s->t;
    int64_t now = eni_now_ns();
    if (now - board->flushed_ns < flush_ns) return;
    board->flushed_ns = now;
    fflush(board->file);
}

void eni_tensorboard_point(eni_tensorboard *board, const char *set, const eni_point *point)
{
    if (board == NULL) return;
    proto summary = {.n = 0};
    char tag[40];
    snprintf(tag, sizeof tag, "%.20s/loss", set);
    put_scalar(&summary, tag, point->loss);
    snprintf(tag, sizeof tag, "%.20s/accuracy", set);
    if (!isnan(point->accuracy)) put_scalar(&summary, tag, point->accuracy);
    write_summary(board, point->t, point->samples, &summary);
}

en_status eni_tensorboard_close(eni_tensorboard *board)
{
    if (board == NULL) return EN_OK;
    int failed = ferror(board->file);
    failed |= fclose(board->file) != 0;
    if (failed) eni_error("board", "cannot write %s: %s", board->path, strerror(errno));
    eni_free(board);
    return failed ? EN_EIO : EN_OK;
}
