/* launcher.h - what outer launchers say about this process in its environment: torchrun (or a script with
 * torchrun's variables), Slurm's srun, Open MPI, PMI (MPICH, Intel MPI), MVAPICH2; private to config/.
 *
 * A launcher may run inside another one: the innermost is meant. torchrun's agent is always innermost. MPI's
 * launchers put one daemon on each host, by srun where there is Slurm: a Slurm step with one task per host
 * yields to them. Everything else that two launchers say must agree. A batch script is no task of Slurm,
 * though it has SLURM_PROCID: there is no SLURM_STEP_ID in it, or that of a step for scripts and shells. */
#ifndef CONFIG_LAUNCHER_H
#define CONFIG_LAUNCHER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "entrain/status.h"

enum { ENI_SAID_RANK, ENI_SAID_WORLD, ENI_SAID_LOCAL_RANK, ENI_SAID_LOCAL_SIZE, ENI_SAID };
enum { ENI_LAUNCHERS = 5 };

typedef struct eni_said {
    const char *name;               /* "Slurm" */
    const char *variable[ENI_SAID]; /* where it stands; NULL: not said */
    char text[ENI_SAID][24];        /* as it stands there; "": not said */
} eni_said;

/* The flag behind each of ENI_SAID_*, without dashes. */
extern const char *const eni_said_keys[ENI_SAID];

/* All launchers that speak of this process, the innermost first; those that another one has started are left
 * out. `said_out` has room for ENI_LAUNCHERS. */
int eni_launchers_read(eni_said *said_out);

/* EN_EINVAL, logged with everything that everybody says and the flags that decide, where two disagree about
 * something that no flag has decided: is_decided[ENI_SAID_RANK] and so on. */
en_status eni_launchers_agree(const eni_said *said, int count, const bool *is_decided);

/* Whether Slurm is among them. */
bool eni_slurm_speaks(void);

/* Where a Slurm step meets: its first host (127.0.0.1 where the step has one host only) and port 15000 + the
 * last four digits of the job's number. false where Slurm does not say. */
bool eni_slurm_master(char *host_out, size_t bytes, int *port_out);

/* The first name of a host list, "a[03-5,9]-ib,b" gives "a03-ib". false when it is malformed or too long. */
bool eni_slurm_first_host(const char *list, char *host_out, size_t bytes);

/* Tasks on the host number `node` (from 0), "2(x3),1" gives 2, 2, 2, 1. false when it is malformed or has
 * fewer hosts. */
bool eni_slurm_tasks_on(const char *text, int64_t node, int64_t *tasks_out);

#endif
