/* mutate.h - mutations that keep a message a message: what a fuzzer that only flips bytes rarely gets past.
 *
 * A message of ours is one msgpack array. These change one element (another number near a limit, another text
 * of another length, another type, a copy of its neighbour, none at all), in nested arrays too, and write
 * lengths and counts anew, so that the reader gets to the field instead of refusing the frame. */
#ifndef FUZZ_MUTATE_H
#define FUZZ_MUTATE_H

#include <stddef.h>
#include <stdint.h>

/* Of libFuzzer; replay.c has one that changes nothing. */
size_t LLVMFuzzerMutate(uint8_t *data, size_t bytes, size_t max_bytes);
size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t bytes, size_t max_bytes, unsigned seed);

/* Mutates in place; returns the new length, at most max_bytes. One time in four, and whenever the input is no
 * array, the bytes are mutated as bytes. */
size_t fuzz_mutate_array(uint8_t *data, size_t bytes, size_t max_bytes, unsigned seed);

/* Numbers at and around what limits are made of. */
uint64_t fuzz_number(unsigned *state);
unsigned fuzz_random(unsigned *state);

#endif
