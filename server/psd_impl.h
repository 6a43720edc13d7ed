/* psd_impl.h - what the files of psd share; nobody else includes it. */
#ifndef SERVER_PSD_IMPL_H
#define SERVER_PSD_IMPL_H

#include <pthread.h>
#include <stdatomic.h>

#include "runtime/control/member.h"
#include "runtime/net/host_info.h"
#include "server/shard.h"
#include "server/state.h"

/* One run. Whoever opens the shards (the leader's thread; of psd 1 and up the member's) fills the lower half;
 * main reads it after that thread has ended. */
typedef struct eni_psd {
    const eni_config *config;
    const en_strategy *strategy;
    int32_t nranks;
    int32_t server, nservers;                 /* this one of so many */
    int32_t nshards, own_shards, first_shard; /* of all servers; of this one */
    char name[32];                            /* "psd", "psd 1" */
    const char *version;                      /* of this program */
    eni_options *options;                     /* as given to psd itself; NULL: none */
    eni_address listen;                       /* the port as bound: known to main only */
    eni_token token;
    char token_path[512]; /* written by us; "": not ours to remove */
    int token_lock;       /* on it while we live; -1: none */
    char host[ENI_HOST_MAX], host_id[ENI_HOST_ID_MAX];
    int signal_fd;

    /* a shard that fails may be faster than main */
    pthread_mutex_t lock;
    eni_leader *leader; /* under lock, as the next two; psd 0 */
    eni_member *member; /* psd 1 and up */
    char failure[ENI_REASON_MAX];

    /* with --state */
    eni_state *state;
    eni_journal *journal;
    eni_run_file *past; /* the previous incarnation; NULL: this is the first */
    eni_revived revived;

    eni_setup setup;
    eni_net *net;
    eni_shaper *shaper;
    eni_trace *trace;
    eni_weights *weights; /* NULL: the workers get copies */
    eni_arenas *arenas;
    eni_shard **shards;                 /* (own_shards) */
    uint8_t *is_client;                 /* (nranks) */
    eni_key_value *member_data;         /* what the workers are told */
    char (*texts)[2][ENI_ADDRESS_TEXT]; /* their keys and values */
    size_t nmember_data;
    char *report; /* freed with free() */
} eni_psd;

/* ---- psd_shards.c */

/* How many shards this psd has; not after they were opened. */
void eni_psd_set_shards(eni_psd *psd, int32_t own_shards);
/* Reads what rank 0 says of the run, opens the shards, and fills the member data. `why_out` has the sentence
 * on failure. */
en_status eni_psd_open_shards(eni_psd *psd, const eni_world_info *world, char why_out[ENI_REASON_MAX]);
/* After psd 0 came back under another epoch. */
en_status eni_psd_set_epoch(eni_psd *psd, uint32_t epoch);
void eni_psd_lose(eni_psd *psd, int32_t rank);
/* `others`: the reports of psd 1, 2, ..; NULL (logged): none could be made. */
const char *eni_psd_report(eni_psd *psd, const eni_blob *others, size_t n);
void eni_psd_stop_shards(eni_psd *psd);
void eni_psd_close_shards(eni_psd *psd);

#endif
