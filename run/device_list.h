/* device_list.h - the devices that --device names: "cpu", "cuda:1", "cpu:0,cpu:1", "cuda:all".
 *
 * A host device is logical: the same library opened again, with its own threads, so a host has as many as are
 * named. */
#ifndef RUN_DEVICE_LIST_H
#define RUN_DEVICE_LIST_H

#include <stdbool.h>

enum { ENI_DEVICE_NAME = 16, ENI_DEVICES_MAX = 64, ENI_DEVICE_INDEX_MAX = 1023 };

typedef struct eni_device_list {
    char kind[ENI_DEVICE_NAME]; /* "cpu", "ref", "cuda"; "auto" until ops/device.h resolves it */
    int n;                      /* devices named, each once; 0: "cpu", "cuda", "cuda:all", without an index */
    int index[ENI_DEVICES_MAX];
    bool is_all; /* "cuda:all" */
} eni_device_list;

/* NULL, and the list; or the expected form ("devices of one kind, such as cuda:0,cuda:1"). Any word may be a kind: the
 * caller knows which devices exist. Pure; logs nothing. */
const char *eni_device_list_read(const char *spec, eni_device_list *list_out);

/* Whether they are GPUs. */
bool eni_device_list_is_gpu(const eni_device_list *list);

#endif
