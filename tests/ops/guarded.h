/* guarded.h - memory that shows at once when it is used wrongly.
 *
 *     | no access | gap | block | gap | no access |
 *
 * A block ends where its last page ends, up to its alignment, between two stretches that nobody may touch; what is left
 * of its pages holds a pattern. It begins as 0xff in every byte, as floats: no numbers. An access beyond it ends the
 * process, with a sentence if guarded_catch was called; a write into a gap shows in guarded_damage, and when it is freed. */
#ifndef TESTS_OPS_GUARDED_H
#define TESTS_OPS_GUARDED_H

#include <stdbool.h>
#include <stddef.h>

/* `align` is a power of two. Never NULL: without memory the process ends. `name` is kept, and is for messages. */
void *guarded_new(const char *name, size_t bytes, size_t align);
void guarded_free(void *block); /* NULL is fine */

/* 0xff again. */
void guarded_fill(void *block);

/* Whether it may be written, from now on; reading it stays allowed. */
void guarded_protect(void *block, bool is_writable);

/* Says in static storage which gap of a block was written, or of any that was freed; NULL: none. */
const char *guarded_damage(const void *block);

/* On SIGSEGV and SIGBUS of this process: who touched what is written to `text`, and the process ends with `status`. */
void guarded_catch(char *text, size_t size, int status);

/* From now on, or no longer: aligned memory that libraries of this process ask for (posix_memalign: oneDNN's buffers, and
 * what eni_alloc gives) is guarded, too. Not under a sanitizer, which has a malloc of its own: then nothing happens. */
void guarded_libraries(bool is_guarded);

#endif
