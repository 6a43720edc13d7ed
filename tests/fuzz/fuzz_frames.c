/* fuzz_frames.c - any bytes from the neighbour of a ring over TCP: rank 0 of two makes three calls, and rank
 * 1 is the input. Each wait ends, with a result or with a reason; nothing outside the vectors is written.
 *
 * The first byte chooses ring or naive, and the calls. The corpus has what an honest neighbour says. */
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "core/log.h"
#include "runtime/collective/coll.h"
#include "runtime/collective/progress_engine.h"
#include "tests/fuzz/must.h"
#include "tests/fuzz/mutate.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

enum { COUNT = 96, SEGMENT = 16, CALLS = 3, GUARD = 0x5a };

/* The offset of a frame of the input, walking over headers and payloads. */
static size_t some_frame(const uint8_t *data, size_t bytes, unsigned *state)
{
    size_t at = 1, found = 1;
    for (unsigned n = fuzz_random(state) % 16; at + sizeof(eni_frame) <= bytes; n--) {
        eni_frame frame;
        found = at;
        if (n == 0) break;
        memcpy(&frame, data + at, sizeof frame);
        at += sizeof frame + (frame.n < bytes ? eni_frame_payload(&frame) : 0);
    }
    return found;
}

/* One field of one frame becomes a number near a limit. */
size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t bytes, size_t max_bytes, unsigned seed)
{
    unsigned state = seed;
    const size_t at = some_frame(data, bytes, &state);
    if (at + sizeof(eni_frame) > bytes || fuzz_random(&state) % 4 == 0)
        return LLVMFuzzerMutate(data, bytes, max_bytes);
    const uint64_t number = fuzz_random(&state) % 2 ? fuzz_number(&state) : fuzz_random(&state) % 100;
    const size_t word = fuzz_random(&state) % (sizeof(eni_frame) / 4);
    memcpy(data + at + 4 * word, &number, fuzz_random(&state) % 2 ? 1 : 4);
    return bytes;
}

static eni_coll_op call_of(unsigned choice, uint32_t bucket)
{
    static const int ops[] = {EN_ALLREDUCE, EN_REDUCE_SCATTER, EN_ALLGATHER,    EN_REDUCE,
                              EN_BCAST,     ENI_COLL_SENDRECV, ENI_COLL_BARRIER};
    return (eni_coll_op){.op = ops[choice % 7],
                         .what = EN_GRAD,
                         .bucket = bucket,
                         .slot = 1,
                         .offset = 16,
                         .count = 48,
                         .hi = 24,
                         .nsamples = 2,
                         .to = 1,
                         .from = 1,
                         .slot_in = 2};
}

static void call(eni_coll *coll, unsigned choice)
{
    uint64_t req[CALLS];
    int n = 0;
    for (; n < CALLS; n++) {
        const eni_coll_op op = call_of(choice + (unsigned)n, (uint32_t)n);
        if (eni_coll_submit(coll, &op, &req[n]) != EN_OK) break;
    }
    for (int i = 0; i < n; i++) {
        const en_status st = eni_coll_wait(coll, req[i]);
        must(st == EN_OK || st == EN_EPEER || st == EN_EMISMATCH || st == EN_EPROTO);
    }
}

/* What the calls do not name stays as it was. */
static void guard(const eni_arena *arena, int is_check)
{
    for (uint32_t slot = 1; slot < 3; slot++) {
        unsigned char *bytes = (unsigned char *)eni_arena_at(arena, slot, 0);
        for (size_t i = 0; i < COUNT * sizeof(float); i++) {
            if (i >= 16 * sizeof(float) && i < 64 * sizeof(float)) continue;
            if (!is_check) bytes[i] = GUARD;
            must(bytes[i] == GUARD);
        }
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    int ends[2];
    eni_coll *coll;
    eni_arena *arenas[2] = {NULL, NULL};
    if (bytes == 0 || bytes > 16384) return 0;
    eni_log_set_level(-1);
    must(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends) == 0);
    must(eni_arena_open(COUNT, 4, 0, &arenas[0]) == EN_OK);
    guard(arenas[0], 0);
    const int sockets[2] = {-1, ends[0]};
    const eni_coll_config config = {.nranks = 2,
                                    .epoch = 1,
                                    .algorithm = data[0] & 1 ? ENI_COLL_NAIVE : ENI_COLL_RING,
                                    .transport = ENI_OVER_TCP,
                                    .arenas = arenas,
                                    .sockets = sockets,
                                    .segment = SEGMENT,
                                    .alive = {.fd = -1}};
    must(write(ends[1], data + 1, bytes - 1) == (ssize_t)bytes - 1);
    shutdown(ends[1], SHUT_WR); /* after these bytes it is gone, but still reads */
    must(eni_coll_open(&config, &coll) == EN_OK);
    call(coll, data[0] >> 1);
    close(ends[1]); /* or the end would wait a second for somebody to read what is under way */
    eni_coll_close(coll);
    guard(arenas[0], 1);
    eni_arena_close(arenas[0]);
    return 0;
}
