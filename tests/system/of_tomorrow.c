/* of_tomorrow.c - in place of the build's own version: a worker and a psd that are not of this release. */
#include "core/version.h"

const char eni_version[] = "99.0.0+of-tomorrow";
