/* checkpoint_name.h - the checkpoints of a folder, by their names: a rank writes and removes them, the program
 * `transfer` uploads them, and --overwrite removes them. Any thread; reading a folder blocks.
 *
 *     checkpoint-000000012800.safetensors    global samples applied, twelve digits or more; so a user's
 *                                            checkpoint-best.safetensors does not count
 *     checkpoint-000000012800.safetensors.*.tmp    left by a writer that was killed */
#ifndef CORE_CHECKPOINT_NAME_H
#define CORE_CHECKPOINT_NAME_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* `transfer` holds FOLDER/.mirror (flock) while it uploads a folder's checkpoints. Meanwhile a rank does not remove a
 * checkpoint but appends this suffix, and transfer removes it. transfer holds a shared lock on a file during its upload. */
#define ENI_MIRROR_LOCK ".mirror"
#define ENI_RETIRED     ".retired.tmp"

/* Whether it is a checkpoint's name, and its samples. */
bool eni_checkpoint_is(const char *name, uint64_t *samples_out);

/* Whether it is a temporary file of a checkpoint whose writer is gone (.tmp above), or a retired checkpoint. */
bool eni_checkpoint_is_left(const char *name);

/* "DIR/checkpoint-000000012800.safetensors"; dir NULL: the name alone. */
void eni_checkpoint_path(const char *dir, uint64_t samples, char *path_out, size_t bytes);

/* Samples of the checkpoints in `dir` whose names end in `ending` ("", ENI_RETIRED), newest first; at most `room`
 * (1 or more). 0 if there is no such folder. */
size_t eni_checkpoint_list(const char *dir, const char *ending, uint64_t *samples_out, size_t room);

#endif
