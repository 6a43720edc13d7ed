/* wait_note.h - what a thread is waiting for, readable by another thread: the waiting thread writes it around every
 * wait, in a few atomic stores, without a call. */
#ifndef CORE_WAIT_NOTE_H
#define CORE_WAIT_NOTE_H

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#include "core/clock.h"

typedef struct eni_wait_note {
    atomic_int_fast64_t begin_ns; /* 0: not waiting */
    _Atomic(const char *) what, name;
    atomic_uint_fast64_t bytes;
    atomic_uint number;         /* of the step's operations, 0: none; stays after the wait */
    atomic_uint_fast64_t moves; /* incremented when a wait begins or ends */
} eni_wait_note;

static inline void eni_wait_note_move(eni_wait_note *note)
{
    atomic_fetch_add_explicit(&note->moves, 1, memory_order_relaxed);
}

/* The begin is stored last and cleared first: a reader that finds the same begin before and after has read a consistent
 * note. `what` is a literal; `name` stays valid as long as the note. */
static inline void eni_wait_note_begin(eni_wait_note *note, const char *what, const char *name,
                                       uint64_t bytes, uint32_t number)
{
    atomic_thread_fence(memory_order_release); /* later stores are not seen before the last end */
    atomic_store_explicit(&note->what, what, memory_order_relaxed);
    atomic_store_explicit(&note->name, name == NULL ? "" : name, memory_order_relaxed);
    atomic_store_explicit(&note->bytes, bytes, memory_order_relaxed);
    atomic_store_explicit(&note->number, number, memory_order_relaxed);
    eni_wait_note_move(note);
    atomic_store(&note->begin_ns, eni_now_ns());
}

static inline void eni_wait_note_end(eni_wait_note *note)
{
    atomic_store(&note->begin_ns, 0);
    eni_wait_note_move(note);
}

#endif
