/* nccl.h - libnccl, loaded when it is first needed: a run on one GPU, or on the processor, needs none of its
 * 200 MB. The types of the table are those of its own header, so that a change there does not compile here.
 */
#ifndef OPS_CUDA_NCCL_H
#define OPS_CUDA_NCCL_H

#include <nccl.h>

typedef struct eni_nccl {
    __typeof__(ncclGetVersion) *get_version;
    __typeof__(ncclGetUniqueId) *get_unique_id;
    __typeof__(ncclGetErrorString) *get_error_string;
    __typeof__(ncclGetLastError) *get_last_error;
    __typeof__(ncclCommInitRankConfig) *comm_init;
    __typeof__(ncclCommGetAsyncError) *comm_get_async_error;
    __typeof__(ncclCommFinalize) *comm_finalize;
    __typeof__(ncclCommDestroy) *comm_destroy;
    __typeof__(ncclCommAbort) *comm_abort;
    __typeof__(ncclAllReduce) *all_reduce;
    __typeof__(ncclBroadcast) *broadcast;
    __typeof__(ncclRedOpCreatePreMulSum) *create_scaled_sum;
    __typeof__(ncclRedOpDestroy) *destroy_op;
} eni_nccl;

/* NULL, or why it cannot be had: one clause, static or the loader's own. A library that was loaded stays: it
 * has threads of its own. */
const char *eni_nccl_load(eni_nccl *nccl_out);

#endif
