/* version.h - which program this is. Ranks of one run must be of one version.
 *
 * Only the programs' main files include it: the build writes the definition (cmake/version.cmake) and links
 * it to them alone, so that a commit does not link every library and test again. */
#ifndef CORE_VERSION_H
#define CORE_VERSION_H

/* "0.1.0+29b8609c01d2": the release and, if it was built in a git checkout, the commit. */
extern const char eni_version[];

#endif
