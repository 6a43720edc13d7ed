#include "server/arenas.h"

#include <pthread.h>
#include <stdatomic.h>
#include <sys/eventfd.h>
#include <sys/stat.h>
#include <unistd.h>

#include "runtime/core/clock.h"
#include "runtime/core/log.h"
#include "runtime/core/memory.h"
#include "runtime/core/try.h"
#include "runtime/net/wire.h"

struct eni_arenas {
    int32_t nranks;
    atomic_uint_least32_t epoch;
    uint64_t elements;
    eni_token token;
    const eni_weights *weights; /* NULL: none to give */
    char name[ENI_FDPASS_NAME];
    int listen_fd, stop_fd;
    pthread_t thread;
    _Atomic(eni_arena *) *arena; /* (nranks) written once by the thread, read by the lanes */
    ino_t *inode;                /* (nranks) of the memory behind it */
};

/* Maps what a worker handed over; the status is the answer to it. */
static en_status take_in(eni_arenas *arenas, const eni_arena_hello *hello, int fd)
{
    const uint32_t epoch = atomic_load(&arenas->epoch);
    struct stat info;
    if (hello->rank < 0 || hello->rank >= arenas->nranks || hello->epoch != epoch ||
        hello->count != arenas->elements) {
        eni_warn("arenas",
                 "refused an arena of %llu elements for rank %d, epoch %u: this run has %llu for "
                 "ranks below %d, epoch %u",
                 (unsigned long long)hello->count, hello->rank, hello->epoch,
                 (unsigned long long)arenas->elements, arenas->nranks, epoch);
        return EN_EMISMATCH;
    }
    if (fstat(fd, &info) != 0) return EN_EIO;
    if (atomic_load_explicit(&arenas->arena[hello->rank], memory_order_relaxed)) {
        if (arenas->inode[hello->rank] == info.st_ino) return EN_OK; /* it found psd again */
        eni_warn("arenas", "refused a second arena for rank %d", hello->rank);
        return EN_EMEMBER;
    }
    eni_arena *arena;
    EN_TRY(eni_arena_map(fd, hello->count, &arena));
    if (eni_arena_nslots(arena) <= ENI_SLOT_INBOX) {
        eni_warn("arenas", "refused the arena of rank %d: it has no inbox", hello->rank);
        eni_arena_close(arena);
        return EN_EPROTO;
    }
    arenas->inode[hello->rank] = info.st_ino;
    atomic_store_explicit(&arenas->arena[hello->rank], arena, memory_order_release);
    return EN_OK;
}

/* One worker: a descriptor and a hello in; a status and perhaps our weights out. */
static void serve(eni_arenas *arenas, int fd)
{
    const int64_t deadline = eni_now_ns() + 2 * ENI_SECOND;
    int fds[ENI_FDPASS_MAX];
    size_t nfds, bytes;
    eni_arena_hello hello;
    if (eni_fdpass_recv(fd, fds, &nfds, &hello, sizeof hello, &bytes, deadline, arenas->stop_fd) != EN_OK)
        return;
    eni_arena_answer answer = {.status = EN_EPROTO};
    if (nfds == 1 && bytes == sizeof hello) answer.status = take_in(arenas, &hello, fds[0]);
    for (size_t i = 0; i < nfds; i++)
        close(fds[i]);
    const int weights = eni_weights_fd(arenas->weights);
    answer.has_weights = answer.status == EN_OK && weights >= 0;
    eni_fdpass_send(fd, &weights, answer.has_weights, &answer, sizeof answer, deadline, arenas->stop_fd);
}

static void *accept_workers(void *user)
{
    eni_arenas *arenas = user;
    int fd;
    for (;;) {
        const en_status st =
            eni_fdpass_accept(arenas->listen_fd, &arenas->token, INT64_MAX, arenas->stop_fd, &fd);
        if (st == EN_ETIMEOUT) continue;
        if (st != EN_OK) return NULL; /* stopped; or the socket broke, which was logged */
        serve(arenas, fd);
        close(fd);
    }
}

en_status eni_arenas_start(int32_t nranks, uint32_t epoch, uint64_t elements, const eni_token *token,
                           const eni_weights *weights, eni_arenas **arenas_out)
{
    eni_arenas *arenas = eni_alloc(sizeof *arenas);
    if (!arenas) return EN_ENOMEM;
    *arenas = (eni_arenas){.nranks = nranks, .elements = elements, .token = *token, .weights = weights};
    atomic_init(&arenas->epoch, epoch);
    en_status st = EN_ENOMEM;
    arenas->arena = eni_alloc_array((size_t)nranks, sizeof *arenas->arena);
    arenas->inode = eni_alloc_array((size_t)nranks, sizeof *arenas->inode);
    if (!arenas->arena || !arenas->inode) goto free_arenas;
    EN_TRY_GOTO(eni_fdpass_listen(arenas->name, &arenas->listen_fd), free_arenas);
    st = EN_EIO;
    arenas->stop_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (arenas->stop_fd < 0) goto close_listen;
    if (pthread_create(&arenas->thread, NULL, accept_workers, arenas) != 0) goto close_stop;
    *arenas_out = arenas;
    return EN_OK;

close_stop:
    close(arenas->stop_fd);
close_listen:
    close(arenas->listen_fd);
    eni_error("arenas", "cannot start the thread that takes the workers' memory");
free_arenas:
    eni_free(arenas->inode);
    eni_free(arenas->arena);
    eni_free(arenas);
    return st;
}

const char *eni_arenas_name(const eni_arenas *arenas)
{
    return arenas->name;
}

void eni_arenas_set_epoch(eni_arenas *arenas, uint32_t epoch)
{
    atomic_store(&arenas->epoch, epoch);
}

eni_arena *eni_arenas_find(const eni_arenas *arenas, int32_t rank)
{
    return atomic_load_explicit(&arenas->arena[rank], memory_order_acquire);
}

void eni_arenas_stop(eni_arenas *arenas)
{
    if (!arenas) return;
    const uint64_t one = 1;
    while (write(arenas->stop_fd, &one, sizeof one) < 0) {
    }
    pthread_join(arenas->thread, NULL);
    for (int32_t r = 0; r < arenas->nranks; r++)
        eni_arena_close(atomic_load(&arenas->arena[r]));
    close(arenas->stop_fd);
    close(arenas->listen_fd);
    eni_free(arenas->inode);
    eni_free(arenas->arena);
    eni_free(arenas);
}
