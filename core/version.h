/* version.h - this program's version, for records: what must be equal in a run are protocol numbers (runtime/spec/run_spec.h).
 *
 * Only the programs' main files include it: the build writes the definition (cmake/version.cmake) and links it into
 * them alone, so that a commit does not relink every library and test. */
#ifndef CORE_VERSION_H
#define CORE_VERSION_H

/* "0.1.0+29b8609c01d2": the release and, if it was built in a git checkout, the commit. */
extern const char eni_version[];

#endif
