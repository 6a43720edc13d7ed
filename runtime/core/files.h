/* files.h - how many descriptors this process may hold. */
#ifndef CORE_FILES_H
#define CORE_FILES_H

#include <stddef.h>

#include "entrain/status.h"

/* Raises the soft limit of open files as far as `needed` asks and the hard one allows; `who` ("a leader of 8
 * ranks") needs them. EN_EUNSUPPORTED with one sentence where that is not enough: a poll(2) of more
 * descriptors than the limit fails for ever. Any thread. */
en_status eni_files_need(size_t needed, const char *who);

#endif
