/* checkpoint_name.h - the checkpoints of a folder, by their names: a rank writes and removes them, the program `transfer`
 * brings them to a bucket, and --overwrite removes them. Any thread; what reads a folder blocks on it.
 *
 *     checkpoint-000000012800.safetensors    the number, of twelve digits or more: global samples applied. So a user's
 *                                            checkpoint-best.safetensors is none
 *     checkpoint-000000012800.safetensors.*.tmp    of a writer that was killed */
#ifndef CORE_CHECKPOINT_NAME_H
#define CORE_CHECKPOINT_NAME_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* While `transfer` holds FOLDER/.mirror (flock), since it brings a folder's checkpoints to a bucket, what a rank would remove
 * gets this end to its name instead, and transfer removes it. While it goes up, transfer has a shared lock on it. */
#define ENI_MIRROR_LOCK ".mirror"
#define ENI_RETIRED     ".retired.tmp"

/* Whether it is a checkpoint's name, and its samples. */
bool eni_checkpoint_is(const char *name, uint64_t *samples_out);

/* Whether it is that of a checkpoint that nobody writes any more, or that is retired: of those above with .tmp. */
bool eni_checkpoint_is_left(const char *name);

/* "DIR/checkpoint-000000012800.safetensors"; dir NULL: the name alone. */
void eni_checkpoint_path(const char *dir, uint64_t samples, char *path_out, size_t bytes);

/* Samples of the checkpoints in `dir` whose name has `ending` behind it ("", ENI_RETIRED), the newest first; at most `room`
 * (1 or more) of them. A folder that is not there has none. */
size_t eni_checkpoint_list(const char *dir, const char *ending, uint64_t *samples_out, size_t room);

#endif
