#include "server/weights.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "core/log.h"
#include "core/memory.h"
#include "core/try.h"

#ifndef F_SEAL_FUTURE_WRITE
#define F_SEAL_FUTURE_WRITE 0x0010
#endif

enum { PAGE = 4096 };
#define MAX_ELEMENTS (UINT64_C(1) << 44)

struct eni_weights {
    float *vector;
    uint64_t bytes;
    int fd;
};

/* Mapped before it is sealed: later mappings cannot write. */
static en_status make(eni_weights *weights)
{
    weights->fd = memfd_create("entrain-weights", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (weights->fd < 0 || ftruncate(weights->fd, (off_t)weights->bytes) != 0) {
        eni_error("weights", "cannot make %llu bytes of shared memory: %s",
                  (unsigned long long)weights->bytes, strerror(errno));
        return EN_ENOMEM;
    }
    void *at = mmap(NULL, weights->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, weights->fd, 0);
    if (at == MAP_FAILED) {
        eni_error("weights", "cannot map %llu bytes: %s", (unsigned long long)weights->bytes,
                  strerror(errno));
        return EN_ENOMEM;
    }
    weights->vector = at;
    const int seals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_FUTURE_WRITE | F_SEAL_SEAL;
    if (fcntl(weights->fd, F_ADD_SEALS, seals) == 0) return EN_OK;
    eni_info("weights",
             "this kernel cannot keep the workers from writing psd's weights (%s): they get copies",
             strerror(errno));
    return EN_EUNSUPPORTED;
}

en_status eni_weights_open(uint64_t elements, eni_weights **weights_out)
{
    if (elements > MAX_ELEMENTS) { /* a worker said so */
        eni_error("weights", "%llu elements are more than a process can address",
                  (unsigned long long)elements);
        return EN_ENOMEM;
    }
    eni_weights *weights = eni_alloc(sizeof *weights);
    if (!weights) return EN_ENOMEM;
    weights->fd = -1;
    weights->bytes = eni_round_up((elements ? elements : 1) * sizeof(float), PAGE);
    const en_status st = make(weights);
    if (st == EN_OK)
        *weights_out = weights;
    else
        eni_weights_close(weights);
    return st;
}

float *eni_weights_vector(const eni_weights *weights)
{
    return weights->vector;
}

int eni_weights_fd(const eni_weights *weights)
{
    return weights ? weights->fd : -1;
}

void eni_weights_close(eni_weights *weights)
{
    if (!weights) return;
    if (weights->vector) munmap(weights->vector, weights->bytes);
    if (weights->fd >= 0) close(weights->fd);
    eni_free(weights);
}
