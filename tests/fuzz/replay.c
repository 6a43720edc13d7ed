/* replay.c - runs a fuzz target over the files of its corpus, without a fuzzer: `replay FOLDER`.
 *
 * What a fuzzer once found stays found, on every compiler. Exit 1 when the folder holds no file. */
#include <dirent.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);
size_t LLVMFuzzerMutate(uint8_t *data, size_t bytes, size_t max_bytes);

/* libFuzzer's; a mutator in a target asks for it. */
size_t LLVMFuzzerMutate(uint8_t *data, size_t bytes, size_t max_bytes)
{
    (void)data;
    return bytes < max_bytes ? bytes : max_bytes;
}

enum { LARGEST = 1 << 20 };

static int replay(const char *folder, const char *name)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *file = fopen(path, "rb");
    if (file == NULL) return 0;
    uint8_t *whole = malloc(LARGEST);
    const size_t bytes = whole != NULL ? fread(whole, 1, LARGEST, file) : 0;
    uint8_t *data =
        malloc(bytes > 0 ? bytes : 1); /* exactly so long: AddressSanitizer sees the first byte over */
    for (size_t i = 0; i < bytes && data != NULL; i++)
        data[i] = whole[i];
    if (data != NULL) LLVMFuzzerTestOneInput(data, bytes);
    free(data);
    free(whole);
    fclose(file);
    return 1;
}

int main(int argc, char **argv)
{
    DIR *folder = argc == 2 ? opendir(argv[1]) : NULL;
    if (folder == NULL) return 1;
    int files = 0;
    for (const struct dirent *entry; (entry = readdir(folder)) != NULL;)
        if (entry->d_name[0] != '.') files += replay(argv[1], entry->d_name);
    closedir(folder);
    printf("%d files of %s replayed\n", files, argv[1]);
    return files > 0 ? 0 : 1;
}
