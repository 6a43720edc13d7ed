/* launch_impl.h - one run of the launcher, shared by launch.c (course), spawn.c (start) and watch.c (end). */
#ifndef CLI_LAUNCHER_LAUNCH_IMPL_H
#define CLI_LAUNCHER_LAUNCH_IMPL_H

#include <sys/types.h>

#include "cli/launcher/launch.h"
#include "cli/launcher/relay.h"
#include "runtime/control/control.h"
#include "runtime/net/tcp.h"
#include "runtime/net/token.h"

enum { ENI_CHILDREN_MAX = 1026 };

typedef struct eni_child {
    char role[24]; /* "psd", "rank 3" */
    int32_t rank;  /* -1: a psd */
    pid_t pid;
    uint64_t born; /* process.h */
    int pidfd;     /* readable when it has ended; -1: pidfd_open(2) is refused */
    bool is_running;
    bool has_ended;     /* and note_end has not handled it yet */
    int status;         /* of waitpid */
    bool is_terminated; /* we killed it: its status means nothing */
    bool has_said_end;  /* it has finished and exits by itself: its exit code counts */
    en_status end;      /* then: how (eni_end_write); psd's is EN_ESTOP if a rank has ended the run early */
    bool is_lost;       /* it died, and the run with it */
    int log_fd;         /* what a program prints; -1: it goes through */
    char cause[360];    /* names the plugin hook that ended it; "": none did */
} eni_child;

/* State for restarting psd. */
typedef struct eni_psd_return {
    char state[1100]; /* the folder for its state; "": no restarts */
    int64_t restarts_left;
    pid_t keeper;     /* removes a private state folder if the launcher is killed; 0: none */
    int keeper_fd;    /* the keeper waits until no process holds this */
    int64_t alone_ns; /* since when psd is the only process left; 0: it is not */
} eni_psd_return;

/* The pipe on which all children report. */
typedef struct eni_reports {
    int fd, in_fd;   /* our end; the children's end, kept for later ones. -1: none */
    char line[2048]; /* incomplete */
    size_t line_bytes;
} eni_reports;

typedef struct eni_launcher {
    const eni_launch *launch;
    int64_t begin_ns;
    eni_child child[ENI_CHILDREN_MAX];
    int nchildren, nrunning;
    int listen_fd;
    char address[ENI_ADDRESS_TEXT];
    uint16_t master_port; /* of torchrun's variables, for a program's torch.distributed; 0: several hosts */
    eni_token token;
    bool may_lose_ranks; /* --on-worker-loss=continue, and a strategy that supports it */
    int out_fd;          /* the folder of --out, locked; -1: none */
    eni_reports reports;
    eni_relay relay;
    eni_psd_return psd;
    int64_t oom_kills; /* counter at the start */
    eni_launch_course course;

    char failure[ENI_LAUNCH_CAUSE]; /* the logged description of the failure; "": none */
    en_status first;                /* the status of the first that failed */
    const eni_child *failed;        /* the first that died of a signal which we did not send */
    eni_death death;                /* as the first survivor reported it */
    bool has_death;
    bool is_ending;
    struct {
        bool has_come; /* it is in signal_fd for main at the end */
        int taken;     /* it was taken from there meanwhile; 0: it was not */
    } signal;
    bool has_named; /* the cause was logged */
    struct {
        int64_t name_ns; /* logs the cause, with what is known by then */
        int64_t fail_ns; /* a rank gave up: programs that have not ended by then have failed */
        int64_t kill_ns; /* ends the rest */
    } due;               /* INT64_MAX: no cause yet */
} eni_launcher;

/* spawn.c. Errors are logged. */
/* On one host any free port, bound before any process starts, and a fresh token; on several hosts host 0's. */
en_status eni_launcher_choose_address(eni_launcher *launcher);
/* With --server-restarts: the folder for psd's state, empty; in --out if there is one, else a private one.
 * Its removal. */
en_status eni_servers_open(eni_launcher *launcher);
void eni_servers_close(eni_launcher *launcher);
/* Starts psd `server`, or the worker with this number on this host. */
en_status eni_launcher_start_psd(eni_launcher *launcher, int server);
en_status eni_launcher_start_worker(eni_launcher *launcher, int local_rank, bool has_psd);

/* watch.c: waits until all children have ended. A SIGTSTP (Ctrl-Z) in tstp_fd, a signalfd (-1: none), stops
 * all of them and then this process; they go on when it does. */
void eni_launcher_watch(eni_launcher *launcher, int tstp_fd);
/* Ends all children at once; those still running are not blamed for the failure. */
void eni_launcher_terminate_all(eni_launcher *launcher);
/* Processes that the kernel has killed for lack of memory: in our control group where it counts them, else on
 * this machine. -1: no counter. */
int64_t eni_launcher_oom_kills(void);

#endif
