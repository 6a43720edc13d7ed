/* record.c - files of JSON lines, metrics, the bar, TensorBoard's event files; see record.h. */
#include "rank/record.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "core/clock.h"
#include "core/crc32c.h"
#include "core/files.h"
#include "core/log.h"
#include "core/memory.h"
#include "core/try.h"

/* ---- files of one JSON object per line ---- */

/* Whether it is a whole object of at most `resumed` samples and, if it has one, a time of at most `seconds`. */
static bool stays(const char *line, size_t length, uint64_t resumed, double seconds)
{
    static const char key[] = "\"samples\":", time_key[] = "\"t\":";
    const char *at = strstr(line, key), *t = strstr(line, time_key);
    if (length <= 2 || strcmp(line + length - 2, "}\n") != 0 || at == NULL) return false;
    if (t != NULL && !eni_jsonl_is_before(strtod(t + sizeof time_key - 1, NULL), seconds)) return false;
    return strtoull(at + sizeof key - 1, NULL, 10) <= resumed;
}

/* Lines are in the order of time: from the first that is dropped, all are. */
static off_t length_that_stays(FILE *file, uint64_t resumed, double seconds)
{
    char *line = NULL;
    size_t room = 0;
    off_t end = 0;
    for (ssize_t n; (n = getline(&line, &room, file)) > 0 && stays(line, (size_t)n, resumed, seconds);)
        end += n;
    free(line);
    return end;
}

static en_status cut(const char *path, uint64_t resumed, double seconds)
{
    FILE *file = eni_file_open(path, "r+");
    if (file == NULL && errno == ENOENT) return EN_OK;
    if (file != NULL && ftruncate(fileno(file), length_that_stays(file, resumed, seconds)) == 0)
        return fclose(file) == 0 ? EN_OK : EN_EIO;
    eni_error("record", "cannot truncate %s: %s; choose another --out", path, strerror(errno));
    if (file != NULL) fclose(file);
    return EN_EIO;
}

en_status eni_jsonl_open(const char *path, uint64_t resumed, double seconds, FILE **file_out)
{
    if (resumed > 0) EN_TRY(cut(path, resumed, seconds));
    *file_out = eni_file_open(path, resumed > 0 ? "a" : "w");
    if (*file_out != NULL) return EN_OK;
    return eni_fail(EN_EIO, "record", "cannot create %s: %s; choose another --out", path, strerror(errno));
}

en_status eni_record_close(const char *who, const char *path, FILE *file)
{
    if (file == NULL) return EN_OK;
    const bool has_failed = ferror(file) != 0;
    if (fclose(file) != 0) return eni_fail(EN_EIO, who, "cannot write %s: %s", path, strerror(errno));
    if (!has_failed) return EN_OK;
    return eni_fail(EN_EIO, who,
                    "%s is incomplete: an earlier write failed, as on a full disk; free space there",
                    path); /* errno is that of other calls by now */
}

/* ---- metrics ---- */

struct eni_recorder {
    FILE *file;
    bool is_of_all;
    char path[1024];
    char buffer[1 << 16];
};

en_status eni_recorder_open(const char *dir, int rank, uint64_t resumed, double seconds,
                            eni_recorder **recorder_out)
{
    eni_recorder *recorder = eni_alloc(sizeof *recorder);
    if (recorder == NULL) return EN_ENOMEM;
    recorder->is_of_all = rank == ENI_RECORDER_ALL;
    snprintf(recorder->path, sizeof recorder->path, "%s/metrics-%d.jsonl", dir, rank);
    if (recorder->is_of_all) snprintf(recorder->path, sizeof recorder->path, "%s/metrics-all.jsonl", dir);
    en_status st = eni_jsonl_open(recorder->path, resumed, seconds, &recorder->file);
    if (st != EN_OK) {
        eni_free(recorder);
        return st;
    }
    setvbuf(recorder->file, recorder->buffer, _IOFBF, sizeof recorder->buffer);
    *recorder_out = recorder;
    return EN_OK;
}

void eni_recorder_write_at_once(eni_recorder *recorder)
{
    setvbuf(recorder->file, recorder->buffer, _IOLBF, sizeof recorder->buffer);
}

en_status eni_recorder_cut(const char *dir, int first, uint64_t resumed, double seconds)
{
    char path[1024];
    for (int rank = first;; rank++) {
        snprintf(path, sizeof path, "%s/metrics-%d.jsonl", dir, rank);
        if (access(path, F_OK) != 0) return EN_OK;
        EN_TRY(cut(path, resumed, seconds));
    }
}

void eni_recorder_add(eni_recorder *recorder, const eni_step *s)
{
    if (recorder == NULL) return;
    char loss[32] = "null", accuracy[32] = "null", rank[32] = ""; /* JSON has no NaN */
    if (recorder->is_of_all) snprintf(rank, sizeof rank, "\"rank\":%d,", s->rank);
    if (isfinite(s->loss)) snprintf(loss, sizeof loss, "%.9g", (double)s->loss);
    if (isfinite(s->accuracy)) snprintf(accuracy, sizeof accuracy, "%.9g", s->accuracy);
    fprintf(recorder->file,
            "{\"schema\":1,%s\"t\":%.6f,\"step\":%" PRIu64 ",\"epoch\":%" PRIu64 ",\"micro_batch\":%" PRIu64
            ",\"samples\":%" PRIu64 ",\"nsamples\":%" PRIu64 ",\"update\":%" PRIu64
            ",\"base_version\":%" PRIu64 ",\"loss\":%s,\"accuracy\":%s,\"lr\":%.9g,\"step_ns\":%" PRId64
            ",\"data_ns\":%" PRId64 ",\"compute_ns\":%" PRId64 ",\"send_ns\":%" PRId64 ",\"wait_ns\":%" PRId64
            ",\"update_ns\":%" PRId64 ",\"payload_bytes\":%" PRIu64 ",\"wire_bytes\":%" PRIu64
            ",\"staleness\":%.4g}\n",
            rank, s->t, s->step, s->epoch, s->micro_batch, s->samples, s->nsamples, s->update,
            s->base_version, loss, accuracy, (double)s->lr, s->step_ns, s->data_ns, s->compute_ns, s->send_ns,
            s->wait_ns, s->update_ns, s->payload_bytes, s->wire_bytes, s->staleness);
}

void eni_recorder_flush(eni_recorder *recorder)
{
    if (recorder != NULL) fflush(recorder->file); /* a failure shows at the end */
}

en_status eni_recorder_close(eni_recorder *recorder)
{
    if (recorder == NULL) return EN_OK;
    const en_status st = eni_record_close("record", recorder->path, recorder->file);
    eni_free(recorder);
    return st;
}

void eni_recorder_free(eni_recorder *recorder)
{
    if (recorder != NULL) fclose(recorder->file);
    eni_free(recorder);
}

/* ---- the bar; the plain line is the form that PyTorch's MNIST example made familiar ---- */

enum {
    BAR_WIDTH = 20,
    BESIDE = 58,
    BESIDE_ACCURACY = 14 /* a line that is wider than the terminal would not be overwritten */
};

void eni_bar_begin(eni_bar *bar)
{
    bar->tty = isatty(STDERR_FILENO);
    bar->begin_ns = eni_now_ns();
    bar->loss = bar->accuracy = NAN;
}

/* "12.3 s", "4:05 min" */
static void format_left(double seconds, char text[32])
{
    if (seconds < 60)
        snprintf(text, 32, "%.1f s", seconds);
    else
        snprintf(text, 32, "%d:%02d min", (int)(seconds / 60), (int)seconds % 60);
}

/* Samples per second since the beginning. */
static double rate_of(const eni_bar *bar)
{
    const double seconds = (double)(eni_now_ns() - bar->begin_ns) * 1e-9;
    return seconds > 0 ? (double)bar->samples / seconds : 0;
}

static void draw_bar(const eni_bar *bar)
{
    char drawn[BAR_WIDTH * 3 + 1] = "", left[32], score[48] = "";
    const double rate = rate_of(bar);
    double done = bar->total > 0 ? (double)bar->samples / (double)bar->total : 1;
    if (done > 1) done = 1;
    int room = eni_terminal_columns(stderr) - BESIDE;
    if (!isnan(bar->loss)) snprintf(score, sizeof score, "loss %.4f  ", bar->loss);
    if (!isnan(bar->accuracy) && room >= BESIDE_ACCURACY) {
        snprintf(score, sizeof score, "loss %.4f  acc %.1f %%  ", bar->loss, bar->accuracy * 100);
        room -= BESIDE_ACCURACY;
    }
    const int width = room < BAR_WIDTH ? room : BAR_WIDTH;
    for (int i = 0; i < width; i++)
        strcat(drawn, i < (int)(done * width) ? "█" : "░");
    format_left(rate > 0 ? (1 - done) * (double)bar->total / rate : 0, left);
    fprintf(stderr, "\r%s %3.0f %%  %8.0f samples/s  %s%s left \033[K", drawn, done * 100, rate, score, left);
}

static void print_line(const eni_bar *bar, uint64_t samples)
{
    uint64_t per_epoch = bar->per_epoch > 0 ? bar->per_epoch : 1;
    uint64_t epoch = samples > 0 ? (samples - 1) / per_epoch : 0, in_epoch = samples - epoch * per_epoch;
    char accuracy[40] = "";
    if (!isnan(bar->accuracy)) snprintf(accuracy, sizeof accuracy, "  Accuracy: %.2f%%", bar->accuracy * 100);
    fprintf(stderr, "Train Epoch: %" PRIu64 " [%" PRIu64 "/%" PRIu64 " (%.0f%%)]  Loss: %.6f%s\n", epoch + 1,
            in_epoch, per_epoch, 100.0 * (double)in_epoch / (double)per_epoch, bar->loss, accuracy);
}

/* Not dprintf: glibc's leaks its buffer when the launcher has gone. */
static void tell_launcher(const eni_bar *bar)
{
    char line[200];
    if (bar->fd < 0) return;
    int n = snprintf(line, sizeof line, "progress %" PRIu64 " %" PRIu64 " %.1f %.6g %" PRIu64 "\n",
                     bar->samples, bar->total, rate_of(bar), bar->loss, bar->steps);
    (void)!write(bar->fd, line, (size_t)n);
}

void eni_bar_score(eni_bar *bar, uint64_t samples, double loss, double accuracy)
{
    bar->loss = loss;
    bar->accuracy = accuracy;
    if (!bar->quiet && !bar->tty && bar->has_lines) print_line(bar, samples);
}

void eni_bar_start(eni_bar *bar, uint64_t steps, uint64_t samples)
{
    bar->steps = steps;
    bar->samples = samples;
    tell_launcher(bar);
}

void eni_bar_step(eni_bar *bar, uint64_t steps, uint64_t samples)
{
    int64_t now = eni_now_ns();
    bar->steps = steps;
    bar->samples = samples;
    const bool is_due = now - bar->last_ns >= ENI_SECOND / 10 || samples >= bar->total;
    if (!is_due) return;
    tell_launcher(bar);
    if (!bar->quiet && bar->tty) draw_bar(bar);
    bar->last_ns = now;
}

void eni_bar_done(eni_bar *bar)
{
    tell_launcher(bar);
    if (!bar->quiet && bar->tty) fputc('\n', stderr);
}

/* ---- TensorBoard: protocol buffers, as much as a scalar needs ---- */

struct eni_tensorboard {
    FILE *file;
    char path[1024];
    double start;     /* seconds since 1970 at the training clock's 0 */
    uint64_t samples; /* at the last step that was shown */
    double t;
};

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

/* Little endian, as everywhere in Entrain. */
static void put_fixed(proto *p, unsigned field, unsigned type, const void *value)
{
    const size_t bytes = type == FIXED64 ? 8 : 4;
    put_key(p, field, type);
    memcpy(p->byte + p->n, value, bytes);
    p->n += bytes;
}

/* Fields of event.proto and summary.proto. */
enum { EVENT_WALL_TIME = 1, EVENT_STEP = 2, EVENT_VERSION = 3, EVENT_SUMMARY = 5, EVENT_SESSION = 7 };
enum { SUMMARY_VALUE = 1, VALUE_TAG = 1, VALUE_SIMPLE = 2, SESSION_STATUS = 1, SESSION_START = 1 };

static void begin_event(proto *event, double wall_time, uint64_t step)
{
    event->n = 0;
    put_fixed(event, EVENT_WALL_TIME, FIXED64, &wall_time);
    put_key(event, EVENT_STEP, VARINT);
    put_varint(event, step);
}

static void put_scalar(proto *summary, const char *tag, double value)
{
    proto scalar = {.n = 0};
    const float simple = (float)value;
    put_bytes(&scalar, VALUE_TAG, tag, strlen(tag));
    put_fixed(&scalar, VALUE_SIMPLE, FIXED32, &simple);
    put_bytes(summary, SUMMARY_VALUE, scalar.byte, scalar.n);
}

/* ---- TensorBoard: records ---- */

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
    fflush(board->file); /* whole, for a reader; and a child made by fork has nothing left to write */
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

/* ---- TensorBoard: calls ---- */

en_status eni_tensorboard_open(const char *folder, uint64_t resumed, eni_tensorboard **board_out)
{
    struct timespec now;
    char host[256] = "host";
    eni_tensorboard *board = eni_alloc(sizeof *board);
    if (board == NULL) return EN_ENOMEM;
    gethostname(host, sizeof host - 1);
    clock_gettime(CLOCK_REALTIME, &now);
    snprintf(board->path, sizeof board->path, "%s/events.out.tfevents.%010lld.%.100s.%d", folder,
             (long long)now.tv_sec, host, (int)getpid());
    board->file = eni_file_open(board->path, "w");
    if (board->file == NULL) {
        eni_error("board", "--tensorboard: cannot create %s: %s", board->path, strerror(errno));
        eni_free(board);
        return EN_EIO;
    }
    board->start = (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
    board->samples = resumed;
    write_head(board, resumed);
    *board_out = board;
    return EN_OK;
}

void eni_tensorboard_step(eni_tensorboard *board, const eni_step *s)
{
    if (board == NULL) return;
    proto summary = {.n = 0};
    put_scalar(&summary, "train/lr", (double)s->lr);
    if (s->staleness > 0) put_scalar(&summary, "train/staleness", s->staleness);
    if (s->t > board->t && s->samples > board->samples)
        put_scalar(&summary, "train/samples_per_s",
                   (double)(s->samples - board->samples) / (s->t - board->t));
    write_summary(board, s->t, s->samples, &summary);
    board->samples = s->samples;
    board->t = s->t;
}

void eni_tensorboard_score(eni_tensorboard *board, uint64_t samples, double t, double loss, double accuracy)
{
    if (board == NULL) return;
    proto summary = {.n = 0};
    put_scalar(&summary, "train/loss", loss);
    if (!isnan(accuracy)) put_scalar(&summary, "train/accuracy", accuracy);
    write_summary(board, t, samples, &summary);
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
    const en_status st = eni_record_close("board", board->path, board->file);
    eni_free(board);
    return st;
}

void eni_tensorboard_free(eni_tensorboard *board)
{
    if (board != NULL) fclose(board->file);
    eni_free(board);
}
