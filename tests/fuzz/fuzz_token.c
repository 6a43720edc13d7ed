/* fuzz_token.c - any bytes as a token file: only 32 hex digits are one, and they come back. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/log.h"
#include "runtime/net/token.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

enum { PIPE_HOLDS = 4096 };

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    int ends[2];
    eni_token token, again;
    char hex[ENI_TOKEN_HEX];
    eni_log_set_level(-1);
    if (bytes > PIPE_HOLDS || pipe(ends) != 0) return 0;
    if (bytes > 0 && write(ends[1], data, bytes) != (ssize_t)bytes) abort();
    close(ends[1]);
    if (eni_token_read_fd(ends[0], &token) != EN_OK) return 0;
    if (bytes != ENI_TOKEN_HEX - 1 && bytes != ENI_TOKEN_HEX) abort();
    eni_token_hex(&token, hex);
    if (eni_token_parse(hex, &again) != EN_OK || !eni_token_equal(&token, &again)) abort();
    for (size_t i = 0; i < ENI_TOKEN_HEX - 1; i++)
        if ((hex[i] | 0x20) != (data[i] | 0x20)) abort();
    return 0;
}
