/* weights_tool.c - our side of test_safetensors.py.
 *
 *     weights_tool save FILE     writes convnet's initial weights of seed 1, prints their sha256
 *     weights_tool load FILE     reads convnet's weights, prints their sha256 */
#include <stdio.h>
#include <string.h>

#include "core/memory.h"
#include "core/try.h"
#include "models/registry.h"
#include "models/weights.h"

static en_status run(const char *verb, const char *path, const en_schema *schema, float *flat)
{
    char hex[ENI_DIGEST_HEX];
    if (strcmp(verb, "load") == 0) {
        EN_TRY(eni_weights_load(path, schema, flat));
    } else {
        en_schema_init_param(schema, 1, flat);
        EN_TRY(eni_weights_save(path, schema, flat));
    }
    EN_TRY(eni_weights_digest(schema, flat, hex));
    puts(hex);
    return EN_OK;
}

int main(int argc, char **argv)
{
    en_schema schema;
    if (argc != 3 || en_schema_init(eni_network_find("convnet"), &schema) != EN_OK) return 2;
    float *flat = eni_alloc_array(schema.count, sizeof *flat);
    const en_status st = flat == NULL ? EN_ENOMEM : run(argv[1], argv[2], &schema, flat);
    eni_free(flat);
    en_schema_fini(&schema);
    return st == EN_OK ? 0 : 1;
}
