/* try.h - the only two macros that change control flow. */
#ifndef CORE_TRY_H
#define CORE_TRY_H

#include "entrain/status.h"

/* Returns the status of `expr` from the enclosing function unless it is EN_OK. */
#define EN_TRY(expr)                                                                                         \
    do {                                                                                                     \
        en_status en_try_st_ = (expr);                                                                       \
        if (en_try_st_ != EN_OK) return en_try_st_;                                                          \
    } while (0)

/* Keeps the status in the local `st` and unwinds from `label` unless it is EN_OK. */
#define EN_TRY_GOTO(expr, label)                                                                             \
    do {                                                                                                     \
        st = (expr);                                                                                         \
        if (st != EN_OK) goto label;                                                                         \
    } while (0)

#endif
