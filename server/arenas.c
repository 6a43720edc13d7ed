/* arenas.c - the memory that psd and the workers on its host share: psd's weights, which they map, and their
 * arenas, which one thread receives at an abstract socket. */
#include "server/arenas.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/clock.h"
#include "core/log.h"
#include "core/memory.h"
#include "core/try.h"
#include "runtime/net/wire.h"

/* ---- psd's weights ------------------------------------------------------------------------------------- */

#ifndef F_SEAL_FUTURE_WRITE
#define F_SEAL_FUTURE_WRITE 0x0010
#endif

#define MAX_ELEMENTS (UINT64_C(1) << 44)

/* Mapped before it is sealed: later mappings cannot write. */
static en_status make(eni_weights *weights)
{
    EN_TRY(eni_arena_memory("entrain-weights", weights->bytes, 0, &weights->fd));
    void *at = mmap(NULL, weights->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, weights->fd, 0);
    if (at == MAP_FAILED)
        return eni_fail(EN_ENOMEM, "weights",
                        "cannot map %llu bytes: %s; use less memory (model), or raise ulimit -v",
                        (unsigned long long)weights->bytes, strerror(errno));
    weights->vector = at;
    const int seals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_FUTURE_WRITE | F_SEAL_SEAL;
    if (fcntl(weights->fd, F_ADD_SEALS, seals) == 0) return EN_OK;
    eni_info("weights",
             "this kernel cannot write-protect psd's weights against the workers (%s): they get copies",
             strerror(errno));
    return EN_EUNSUPPORTED;
}

en_status eni_weights_open(uint64_t elements, eni_weights **weights_out)
{
    if (elements > MAX_ELEMENTS) { /* the number comes from a worker */
        return eni_fail(EN_ENOMEM, "weights", "%llu elements are more than a process can address",
                        (unsigned long long)elements);
    }
    eni_weights *weights = eni_alloc(sizeof *weights);
    if (weights == NULL) return EN_ENOMEM;
    weights->fd = -1;
    weights->bytes = eni_round_up((elements ? elements : 1) * sizeof(float), eni_page_bytes());
    const en_status st = make(weights);
    if (st == EN_OK)
        *weights_out = weights;
    else
        eni_weights_close(weights);
    return st;
}

void eni_weights_close(eni_weights *weights)
{
    if (weights == NULL) return;
    if (weights->vector) munmap(weights->vector, weights->bytes);
    if (weights->fd >= 0) close(weights->fd);
    eni_free(weights);
}

/* ---- the workers' memory ------------------------------------------------------------------------------- */

/* A worker hands over again when psd 0 was lost and psd 1 was not. */
enum { OLD_RINGS = 256, DOORBELLS = ENI_FDPASS_MAX - 1 };

struct eni_arenas {
    eni_arenas_config config;
    atomic_uint_least32_t epoch;
    char name[ENI_FDPASS_NAME];
    int listen_fd, stop_fd;
    pthread_t thread;
    eni_handed_over *handed;    /* (nranks) */
    ino_t *inode;               /* (nranks) of the memory behind the arena */
    int doorbell_fd[DOORBELLS]; /* (own_shards) unless there are too many */
    int ndoorbells;
    eni_shm_ring *old[OLD_RINGS]; /* a shard may still read them */
    int nold;
};

/* Maps the memory that a worker handed over; the status is the answer to the worker. */
static en_status take_in(eni_arenas *arenas, const eni_arena_hello *hello, int fd)
{
    const uint32_t epoch = atomic_load(&arenas->epoch);
    struct stat info;
    if (hello->rank < 0 || hello->rank >= arenas->config.nranks || hello->epoch != epoch ||
        hello->count != arenas->config.elements) {
        eni_warn("arenas",
                 "refused an arena of %llu elements for rank %d, epoch %u: this run has %llu for ranks below "
                 "%d, epoch %u",
                 (unsigned long long)hello->count, hello->rank, hello->epoch,
                 (unsigned long long)arenas->config.elements, arenas->config.nranks, epoch);
        return EN_EMISMATCH;
    }
    if (fstat(fd, &info) != 0) return EN_EIO;
    if (atomic_load_explicit(&arenas->handed[hello->rank].arena, memory_order_relaxed)) {
        if (arenas->inode[hello->rank] == info.st_ino) return EN_OK; /* it reconnected to psd */
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
    eni_arena_touch(arena, ENI_SLOT_GRAD); /* now, rather than in the first pushes */
    eni_arena_touch(arena, ENI_SLOT_INBOX);
    arenas->inode[hello->rank] = info.st_ino;
    atomic_store_explicit(&arenas->handed[hello->rank].arena, arena, memory_order_release);
    return EN_OK;
}

/* Maps a worker's ring. False: the worker continues by socket. */
static bool take_ring(eni_arenas *arenas, const eni_arena_hello *hello, int fd)
{
    eni_shm_ring *ring, *old = atomic_load_explicit(&arenas->handed[hello->rank].ring, memory_order_relaxed);
    if (arenas->ndoorbells == 0 || (int32_t)hello->shards != arenas->config.nshards) return false;
    if (old && arenas->nold == OLD_RINGS) return false;
    if (eni_shm_ring_map(fd, hello->shards, hello->slots, &ring) != EN_OK) return false;
    if (old) arenas->old[arenas->nold++] = old;
    atomic_store_explicit(&arenas->handed[hello->rank].ring, ring, memory_order_release);
    return true;
}

/* Serves one worker: receives its descriptors and hello; sends a status, our weights and doorbells. */
static void serve(eni_arenas *arenas, int fd)
{
    const int64_t deadline = eni_now_ns() + 2 * ENI_SECOND;
    int fds[ENI_FDPASS_MAX];
    size_t nfds, bytes;
    eni_arena_hello hello;
    if (eni_fdpass_recv(fd, fds, &nfds, &hello, sizeof hello, &bytes, deadline, arenas->stop_fd) != EN_OK)
        return;
    eni_arena_answer answer = {.status = EN_EPROTO, .first_shard = (uint32_t)arenas->config.first_shard};
    int gifts[ENI_FDPASS_MAX], ngifts = 0;
    if (bytes == sizeof hello && nfds == 1 + (size_t)(hello.slots > 0))
        answer.status = take_in(arenas, &hello, fds[0]);
    if (answer.status == EN_OK && arenas->config.weights) {
        gifts[ngifts++] = arenas->config.weights->fd;
        answer.has_weights = 1;
    }
    if (answer.status == EN_OK && hello.slots > 0 && take_ring(arenas, &hello, fds[1]))
        for (; (int)answer.ndoorbells < arenas->ndoorbells; answer.ndoorbells++)
            gifts[ngifts++] = arenas->doorbell_fd[answer.ndoorbells];
    for (size_t i = 0; i < nfds; i++)
        close(fds[i]);
    eni_fdpass_send(fd, gifts, (size_t)ngifts, &answer, sizeof answer, deadline, arenas->stop_fd);
}

static void *accept_workers(void *user)
{
    eni_arenas *arenas = user;
    int fd;
    for (;;) {
        const en_status st =
            eni_fdpass_accept(arenas->listen_fd, &arenas->config.token, INT64_MAX, arenas->stop_fd, &fd);
        if (st == EN_ETIMEOUT) continue;
        if (st != EN_OK) return NULL; /* stopped; or the socket failed, which was logged */
        serve(arenas, fd);
        close(fd);
    }
}

/* With more shards than fit into one message no shard has a doorbell. */
static bool open_doorbells(eni_arenas *arenas)
{
    if (arenas->config.own_shards > DOORBELLS) return true;
    for (int32_t k = 0; k < arenas->config.own_shards; k++, arenas->ndoorbells++)
        if ((arenas->doorbell_fd[k] = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) < 0) return false;
    return true;
}

static void free_arenas(eni_arenas *arenas)
{
    for (int32_t r = 0; arenas->handed != NULL && r < arenas->config.nranks; r++) {
        eni_arena_close(atomic_load(&arenas->handed[r].arena));
        eni_shm_ring_close(atomic_load(&arenas->handed[r].ring));
    }
    for (int i = 0; i < arenas->nold; i++)
        eni_shm_ring_close(arenas->old[i]);
    for (int k = 0; k < arenas->ndoorbells; k++)
        close(arenas->doorbell_fd[k]);
    if (arenas->stop_fd >= 0) close(arenas->stop_fd);
    if (arenas->listen_fd >= 0) close(arenas->listen_fd);
    eni_free(arenas->inode);
    eni_free(arenas->handed);
    eni_free(arenas);
}

en_status eni_arenas_start(const eni_arenas_config *config, eni_arenas **arenas_out)
{
    const size_t nranks = (size_t)config->nranks;
    eni_arenas *arenas = eni_alloc(sizeof *arenas);
    if (arenas == NULL) return EN_ENOMEM;
    arenas->config = *config;
    arenas->listen_fd = arenas->stop_fd = -1;
    atomic_init(&arenas->epoch, config->epoch);
    en_status st = EN_ENOMEM;
    arenas->handed = eni_alloc_array(nranks, sizeof *arenas->handed);
    arenas->inode = eni_alloc_array(nranks, sizeof *arenas->inode);
    if (arenas->handed == NULL || arenas->inode == NULL) goto free_all;
    EN_TRY_GOTO(eni_fdpass_listen(arenas->name, &arenas->listen_fd), free_all);
    st = EN_EIO;
    arenas->stop_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (arenas->stop_fd >= 0 && open_doorbells(arenas) &&
        pthread_create(&arenas->thread, NULL, accept_workers, arenas) == 0) {
        *arenas_out = arenas;
        return EN_OK;
    }
    eni_error("arenas", "cannot start the thread that receives the workers' memory");
free_all:
    free_arenas(arenas);
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

const eni_handed_over *eni_arenas_handed_over(const eni_arenas *arenas)
{
    return arenas->handed;
}

int eni_arenas_doorbell_fd(const eni_arenas *arenas, int32_t shard)
{
    return arenas->ndoorbells > 0 ? arenas->doorbell_fd[shard - arenas->config.first_shard] : -1;
}

void eni_arenas_stop(eni_arenas *arenas)
{
    if (arenas == NULL) return;
    eventfd_write(arenas->stop_fd, 1);
    pthread_join(arenas->thread, NULL);
    free_arenas(arenas);
}
