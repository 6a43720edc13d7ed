#include "server/run_file.h"

#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/log.h"
#include "core/memory.h"
#include "core/try.h"

/* ---- writing ------------------------------------------------------------------------------------------- */

static json_t *key_values_json(const eni_key_value *key_values, size_t n)
{
    json_t *list = json_array();
    for (size_t i = 0; i < n; i++)
        json_array_append_new(list, json_pack("[s, s]", key_values[i].key, key_values[i].value));
    return list;
}

static json_t *peer_json(const eni_peer *peer)
{
    return json_pack("{s:i, s:I, s:I, s:s, s:s, s:o}", "rank", (int)peer->rank, "pid", (json_int_t)peer->pid,
                     "born", (json_int_t)peer->born, "host", peer->host, "host_id", peer->host_id, "privates",
                     key_values_json(peer->member_data, peer->nmember_data));
}

en_status eni_run_file_write(const eni_state *state, const eni_served *attributes,
                             const eni_world_info *world)
{
    char token[ENI_TOKEN_HEX], incarnation[20];
    json_t *peers = json_array();
    eni_token_hex(&attributes->token, token);
    snprintf(incarnation, sizeof incarnation, "%" PRIx64, world->incarnation);
    for (int32_t r = 0; r < world->nranks; r++)
        json_array_append_new(peers, peer_json(&world->peers[r]));
    json_t *run = json_pack("{s:s, s:i, s:i, s:s, s:s, s:s, s:I, s:o, s:o}", "strategy", attributes->strategy,
                            "workers", (int)world->nranks, "lanes", (int)attributes->nshards, "version",
                            attributes->version ? attributes->version : "", "token", token, "incarnation",
                            incarnation, "epoch", (json_int_t)world->epoch, "pairs",
                            key_values_json(world->key_values, world->nkey_values), "peers", peers);
    char *text = run ? json_dumps(run, JSON_COMPACT) : NULL;
    json_decref(run);
    if (!text) {
        eni_error("state", "psd cannot write down its run: out of memory, or a name is not UTF-8");
        return EN_ENOMEM;
    }
    const eni_state_stamp stamp = {
        .kind = ENI_STATE_RUN, .run = world->incarnation, .generation = world->epoch};
    const en_status st = eni_state_write(state, &stamp, text, strlen(text));
    free(text);
    return st;
}

/* ---- reading ------------------------------------------------------------------------------------------- */

/* What the object points into. */
typedef struct run_memory {
    eni_run_file file; /* first */
    json_t *json;
    eni_key_value *key_values;
    eni_peer *peers; /* (npeers) */
    size_t npeers;
} run_memory;

static const char *text_of(const json_t *object, const char *key)
{
    const char *text = json_string_value(json_object_get(object, key));
    return text ? text : "";
}

/* The texts stay the JSON's. */
static en_status read_key_values(const json_t *list, eni_key_value **key_values_out, size_t *n_out)
{
    const size_t n = json_array_size(list);
    eni_key_value *key_values = eni_alloc_array(n, sizeof *key_values);
    if (!key_values) return EN_ENOMEM;
    for (size_t i = 0; i < n; i++) {
        const json_t *pair = json_array_get(list, i);
        key_values[i] = (eni_key_value){json_string_value(json_array_get(pair, 0)),
                                        json_string_value(json_array_get(pair, 1))};
        if (key_values[i].key && key_values[i].value) continue;
        eni_free(key_values);
        return EN_EFORMAT;
    }
    *key_values_out = key_values;
    *n_out = n;
    return EN_OK;
}

static en_status read_peers(run_memory *m, const json_t *list)
{
    m->npeers = json_array_size(list);
    m->peers = eni_alloc_array(m->npeers, sizeof *m->peers);
    if (!m->peers) return EN_ENOMEM;
    for (size_t i = 0; i < m->npeers; i++) {
        const json_t *from = json_array_get(list, i);
        eni_key_value *member_data = NULL;
        eni_peer *peer = &m->peers[i];
        EN_TRY(read_key_values(json_object_get(from, "privates"), &member_data, &peer->nmember_data));
        peer->member_data = member_data;
        peer->rank = (int32_t)json_integer_value(json_object_get(from, "rank"));
        peer->pid = json_integer_value(json_object_get(from, "pid"));
        peer->born = (uint64_t)json_integer_value(json_object_get(from, "born"));
        peer->host = text_of(from, "host");
        peer->host_id = text_of(from, "host_id");
        if (peer->rank != (int32_t)i) return EN_EFORMAT;
    }
    return EN_OK;
}

static en_status read_all(run_memory *m, const eni_state_stamp *stamp)
{
    eni_run_file *file = &m->file;
    const json_t *run = m->json;
    file->attributes.strategy = text_of(run, "strategy");
    file->attributes.version = text_of(run, "version");
    file->attributes.nshards = (int32_t)json_integer_value(json_object_get(run, "lanes"));
    file->nranks = (int32_t)json_integer_value(json_object_get(run, "workers"));
    file->incarnation = strtoull(text_of(run, "incarnation"), NULL, 16);
    file->epoch = (uint32_t)stamp->generation;
    EN_TRY(eni_token_parse(text_of(run, "token"), &file->attributes.token));
    EN_TRY(read_key_values(json_object_get(run, "pairs"), &m->key_values, &file->nkey_values));
    EN_TRY(read_peers(m, json_object_get(run, "peers")));
    file->key_values = m->key_values;
    file->peers = m->peers;
    return file->nranks >= 1 && (size_t)file->nranks == m->npeers && file->incarnation == stamp->run
               ? EN_OK
               : EN_EFORMAT;
}

en_status eni_run_file_read(const eni_state *state, eni_run_file **file_out)
{
    eni_state_stamp stamp;
    uint8_t *bytes;
    size_t length;
    EN_TRY(eni_state_read(state, ENI_STATE_RUN, 0, &stamp, &bytes, &length));
    run_memory *m = eni_alloc(sizeof *m);
    if (m) m->json = json_loadb((const char *)bytes, length, 0, NULL);
    eni_free(bytes);
    if (!m) return EN_ENOMEM;
    m->file.memory = m;
    const en_status st = m->json ? read_all(m, &stamp) : EN_EFORMAT;
    if (st == EN_OK) {
        *file_out = &m->file;
        return EN_OK;
    }
    if (st == EN_EFORMAT) eni_error("state", "%s holds a run that cannot be read", eni_state_path(state));
    eni_run_file_free(&m->file);
    return st;
}

void eni_run_file_free(eni_run_file *file)
{
    if (!file) return;
    run_memory *m = file->memory;
    for (size_t i = 0; m->peers && i < m->npeers; i++)
        eni_free((void *)m->peers[i].member_data);
    eni_free(m->peers);
    eni_free(m->key_values);
    json_decref(m->json);
    eni_free(m);
}
