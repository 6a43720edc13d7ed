/* recv_all.h - the receiving side of eni_tcp_send, which the product has no use for. */
#ifndef TESTS_RECV_ALL_H
#define TESTS_RECV_ALL_H

#include <poll.h>

#include "runtime/net/tcp.h"

/* Receives exactly `bytes`. EN_ETIMEOUT; EN_EPEER: the other side closed, or abort_fd became readable. */
static inline en_status recv_all(int fd, void *data_out, size_t bytes, int64_t deadline_ns, int abort_fd)
{
    uint8_t *at = data_out;
    size_t done = 0;
    while (done < bytes) {
        size_t n = 0;
        en_status st = eni_tcp_recv_some(fd, at + done, bytes - done, &n);
        if (st == EN_OK && n == 0) st = eni_tcp_wait(fd, POLLIN, deadline_ns, abort_fd);
        if (st != EN_OK) return st;
        done += n;
    }
    return EN_OK;
}

#endif
