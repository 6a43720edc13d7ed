/* device_list.h - the devices that --device names: "cpu", "cuda:1", "cpu:0,cpu:1", "cuda:all".
 *
 * A device of a host is logical: the same library opened once more, with threads of its own, so a host has as
 * many as are named. */
#ifndef RUN_DEVICE_LIST_H
#define RUN_DEVICE_LIST_H

#include <stdbool.h>

enum { ENI_DEVICE_NAME = 16, ENI_DEVICES_MAX = 64, ENI_DEVICE_INDEX_MAX = 1023 };

typedef struct eni_device_list {
    char kind[ENI_DEVICE_NAME]; /* "cpu", "ref", "cuda"; "auto" until ops/device.h resolves it */
    int n;                      /* devices named, each once; 0: "cpu", "cuda", "cuda:all": not said which */
    int index[ENI_DEVICES_MAX];
    bool is_all; /* "cuda:all" */
} eni_device_list;

/* NULL, and the list; or what should be given instead ("devices of one kind, as cuda:0,cuda:1"). Any word may be a kind:
 * whether there is such a device, the caller knows. Pure; logs nothing. */
const char *eni_device_list_read(const char *spec, eni_device_list *list_out);

/* Whether they are GPUs. */
bool eni_device_list_is_gpu(const eni_device_list *list);

#endif
