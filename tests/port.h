/* port.h - a TCP port on 127.0.0.1 that nobody else takes while this process lives.
 *
 * A port that the kernel chose and that was closed again may be chosen once more before the program under
 * test listens on it: by any test that runs beside this one. These lie below the range from which the kernel
 * chooses (where that is Linux' own), and tests keep them from each other by an abstract socket's name, which
 * goes with the process that holds it. */
#ifndef TESTS_PORT_H
#define TESTS_PORT_H

/* -1: there is none. Close *hold_out to give it back before the process ends. */
int port_take(int *hold_out);

/* This one too, for who needs two in a row: what holds it, or -1 where somebody has it. */
int port_hold(int port);

#endif
