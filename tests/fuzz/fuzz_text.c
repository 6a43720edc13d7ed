/* fuzz_text.c - any text as --net, as an address, as the options of a strategy. The first byte chooses. What
 * is accepted must be accepted again in the form in which we write it. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/log.h"
#include "core/options.h"
#include "run/units.h"
#include "runtime/net/tcp.h"
#include "tests/fuzz/must.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

static const en_option table[] = {
    {.size = sizeof(en_option), .type = EN_OPT_INT, .key = "bound", .value = 3, .max = 100},
    {.size = sizeof(en_option), .type = EN_OPT_REAL, .key = "alpha", .value = 0.5, .min = -1, .max = 1},
    {.size = sizeof(en_option), .type = EN_OPT_BOOL, .key = "round"},
    {.size = sizeof(en_option), .type = EN_OPT_TEXT, .key = "graph", .text = "ring"},
    {0},
};

static void as_options(const char *text)
{
    static const en_strategy strategy = {.name = "fuzzed", .options = table};
    eni_options *options, *again;
    if (eni_options_new(&strategy, text, &options) != EN_OK) return;
    const double bound = eni_options_num(options, "bound", 1), alpha = eni_options_num(options, "alpha", 1);
    must(bound >= 0 && bound <= 100 && bound == floor(bound) && alpha >= -1 && alpha <= 1);
    must(eni_options_new(&strategy, eni_options_canonical(options), &again) == EN_OK);
    must(strcmp(eni_options_canonical(options), eni_options_canonical(again)) == 0);
    eni_options_free(again);
    eni_options_free(options);
}

static void as_address(const char *text)
{
    eni_address address, again;
    char written[ENI_ADDRESS_TEXT];
    if (eni_address_parse(text, &address) != EN_OK) return;
    eni_address_format(&address, written);
    must(eni_address_parse(written, &again) == EN_OK);
    must(strcmp(address.host, again.host) == 0 && address.port == again.port);
    eni_address_is_loopback(&address);
}

static void as_net(const char *text)
{
    uint64_t rate;
    int64_t delay;
    if (eni_net_parse(text, &rate, &delay)) must(delay >= 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    if (bytes == 0) return 0;
    char *text = malloc(bytes);
    if (text == NULL) return 0;
    memcpy(text, data + 1, bytes - 1);
    text[bytes - 1] = '\0';
    eni_log_set_level(-1);
    switch (data[0] % 3) {
    case 0: as_net(text); break;
    case 1: as_address(text); break;
    default: as_options(text);
    }
    free(text);
    return 0;
}
