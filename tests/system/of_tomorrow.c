/* of_tomorrow.c - a version in place of the build's own, for a worker and a psd of another release. */
#include "core/version.h"

const char eni_version[] = "99.0.0+of-tomorrow";
