/* psd_return.c - psd comes back: what it writes down of a run, and how it begins from that. */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "core/log.h"
#include "core/memory.h"
#include "core/try.h"
#include "server/psd_impl.h"

static en_status other_run(const eni_psd *psd)
{
    const eni_run_file *past = psd->past;
    eni_error("psd",
              "%s holds the state of another run (%s, %d workers, %d shards, by version %s): this psd was "
              "started for %s, %d workers, %d shards; take the folder away to begin anew",
              eni_state_path(psd->state), past->attributes.strategy, past->nranks, past->attributes.nshards,
              past->attributes.version, psd->strategy->name, psd->nranks, psd->nshards);
    return EN_EINVAL;
}

/* What the folder says, as the leader wants it. */
static en_status revive(eni_psd *psd)
{
    const eni_run_file *past = psd->past;
    if (strcmp(past->attributes.strategy, psd->strategy->name) != 0 || past->nranks != psd->nranks ||
        (psd->config->shards > 0 && past->attributes.nshards != psd->nshards) ||
        (psd->version && strcmp(past->attributes.version, psd->version) != 0))
        return other_run(psd);
    psd->revived = (eni_revived){.key_values = past->key_values,
                                 .nkey_values = past->nkey_values,
                                 .peers = past->peers,
                                 .epoch = past->epoch,
                                 .incarnation = past->incarnation,
                                 .stop_step = ENI_STEP_NEVER};
    psd->revived.rank = eni_alloc_array((size_t)psd->nranks, sizeof *psd->revived.rank);
    if (!psd->revived.rank) return EN_ENOMEM;
    eni_psd_set_shards(psd, past->attributes.nshards);
    EN_TRY(eni_journal_open(psd->state, past->incarnation, psd->nranks, 0, &psd->journal));
    EN_TRY(eni_journal_fold(psd->journal, &psd->revived));
    eni_info("psd", "%s: going on with the run of %d workers, epoch %u, %llu micro-batches handed out",
             eni_state_path(psd->state), psd->nranks, past->epoch + 1,
             (unsigned long long)psd->revived.claimed);
    return EN_OK;
}

en_status eni_psd_open_state(eni_psd *psd)
{
    if (!psd->config->state) return EN_OK;
    if (psd->nservers > 1) {
        eni_error("psd", "--state with --servers=%d: a psd among several cannot come back yet",
                  psd->nservers);
        return EN_EINVAL;
    }
    EN_TRY(eni_state_open(psd->config->state, &psd->state));
    const en_status st = eni_run_file_read(psd->state, &psd->past);
    if (st == EN_OK) return revive(psd);
    if (st != EN_ENOENT) return EN_EINVAL;
    eni_state_clear(psd->state); /* of a run that had not begun */
    return EN_OK;
}

en_status eni_psd_write_run(eni_psd *psd, const eni_world_info *world)
{
    const eni_served attributes = {psd->strategy->name, psd->version, psd->nshards, psd->token};
    if (!psd->state) return EN_OK;
    if (!psd->past) EN_TRY(eni_journal_open(psd->state, world->incarnation, psd->nranks, 1, &psd->journal));
    return eni_run_file_write(psd->state, &attributes, world);
}

en_status eni_psd_journal(void *user, const eni_entry *entry)
{
    eni_psd *psd = user;
    if (psd->journal) eni_journal_write(psd->journal, entry);
    return EN_OK;
}

void eni_psd_close_state(eni_psd *psd)
{
    eni_journal_close(psd->journal);
    if (psd->state && (psd->leader || !psd->past)) eni_state_clear(psd->state);
    eni_state_close(psd->state);
    eni_run_file_free(psd->past);
    eni_free(psd->revived.rank);
}
