/* nvml.h - this host's GPUs as NVIDIA's driver reports them: what they are, how they are linked, who uses them.
 *
 * The driver's management library, libnvidia-ml.so.1, is loaded for each query and closed again. It opens no context,
 * which would take half a gigabyte of each GPU. Values that a driver does not report stay unknown.
 *
 * A list has the GPUs that CUDA shows this process, in its order: those of `visible`, CUDA_VISIBLE_DEVICES (NULL: all), by
 * bus position (ops/device.h sets CUDA_DEVICE_ORDER). With slices of a GPU (MIG) CUDA shows one of them only. Any thread. */
#ifndef CORE_NVML_H
#define CORE_NVML_H

#include <stdint.h>

#include "entrain/status.h"

enum { ENI_GPUS_MAX = 64, ENI_GPU_USERS = 64 };

/* A process that has a context on a GPU. */
typedef struct eni_gpu_user {
    int64_t pid;
    uint64_t bytes;   /* of its memory; 0: not known */
    char program[32]; /* "" if another container hides it */
} eni_gpu_user;

typedef struct eni_gpu_seen {
    char name[96]; /* "NVIDIA H100 80GB HBM3" */
    char uuid[96]; /* "GPU-5f1c..", "MIG-..": the same in every process and every container */
    char bus[16];  /* "0000:1b:00.0" */
    uint64_t memory_bytes, free_bytes; /* 0: not known */
    int major, minor;                  /* compute capability; 0: not known */
    char cpus[128];                    /* that are nearest, "0-31,64-95"; "": not known */
    int numa_node;                     /* -1: not known */
    eni_gpu_user users[ENI_GPU_USERS]; /* the first of them */
    int nusers;                        /* all of them; -1: not known */
} eni_gpu_seen;

/* How one GPU reaches another's memory. */
enum {
    ENI_LINK_NONE = 0,
    ENI_LINK_HOST = 1, /* through the processor's memory */
    ENI_LINK_PCIE = 2, /* peer to peer */
    ENI_LINK_NVLINK = 3,
    ENI_LINK_SAME = 4
};

typedef struct eni_gpu_link {
    uint8_t way; /* ENI_LINK_* */
    /* As `nvidia-smi topo -m` prints it: "NV18", "PIX", "PXB", "PHB", "NODE", "SYS", "X"; "": not known. */
    char path[16];
} eni_gpu_link;

typedef struct eni_gpu_machine {
    char driver[80]; /* "580.65.06"; "": not known */
    int n;
    eni_gpu_seen gpu[ENI_GPUS_MAX];
    eni_gpu_link link[ENI_GPUS_MAX][ENI_GPUS_MAX];
} eni_gpu_machine;

/* Runs ask(user) in a child, since a driver may hang uninterruptibly, and CUDA does not survive a fork. Returns the
 * child's status; EN_EUNSUPPORTED, logged: no answer in 60 s; EN_EIO: it crashed; EN_EINTR: signal_fd (-1: none) has a
 * signal, which stays pending. */
en_status eni_driver_ask(en_status (*ask)(void *user), void *user, int signal_fd);

/* Lists the GPUs, in a child. EN_EUNSUPPORTED, logged with the remedy: no driver, one that is too old or does not answer,
 * no GPU. EN_EINTR as above. */
en_status eni_nvml_list(const char *visible, int signal_fd, eni_gpu_machine *machine_out);

/* Length of that list, in a child; 0 if it would fail. Logs only a driver that hangs. */
int eni_nvml_count(const char *visible);

/* Queries one GPU in this process: at most `max` users, and its free memory (0: not known). EN_EUNSUPPORTED: the driver
 * does not report users; *free_bytes_out is set all the same. Logs nothing. */
en_status eni_nvml_look(const char *uuid, eni_gpu_user *users_out, int max, int *n_out,
                        uint64_t *free_bytes_out);

#endif
