/* mutation.h - known bugs, re-introduced at their real place to see whether the tests find them.
 *
 *     if (left > 0 && !eni_mutant("half-message")) return refuse(..);
 *
 * Only a build with EN_MUTATIONS=ON (tools/mutations.sh) has them, one at a time: the one that the environment
 * variable EN_MUTANT names. Everywhere else eni_mutant() is the constant 0 and leaves nothing in the binary. The
 * list, with the tests that must fail, is tests/mutations/mutants.txt. */
#ifndef CORE_MUTATION_H
#define CORE_MUTATION_H

#ifdef EN_MUTATIONS
/* 1 if that mutant is asked for. Any thread. Lies in tests/mutations/mutant.c. */
int eni_mutant(const char *name);
#else
#define eni_mutant(name) 0
#endif

#endif
