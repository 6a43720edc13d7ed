/* refuse_calls.c - starts a program of the build folder for which the kernel refuses some system calls, as
 * old kernels and the filters of containers do: test_refuse_calls ERRNO CALL,CALL,.. PROGRAM ARGUMENT.. */
#include <errno.h>
#include <libgen.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

static const struct call {
    const char *name;
    unsigned number;
} calls[] = {{"pidfd_open", SYS_pidfd_open},
             {"pidfd_send_signal", SYS_pidfd_send_signal},
             {"close_range", SYS_close_range},
             {"memfd_create", SYS_memfd_create},
             {"preadv2", SYS_preadv2},
             {"sched_setattr", SYS_sched_setattr},
             {"sched_getattr", SYS_sched_getattr}};

static unsigned number_of(const char *name)
{
    for (size_t i = 0; i < sizeof calls / sizeof *calls; i++)
        if (strcmp(calls[i].name, name) == 0) return calls[i].number;
    fprintf(stderr, "no call %s\n", name);
    exit(126);
}

int main(int argc, char **argv)
{
    struct sock_filter code[64] = {BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr))};
    unsigned short n = 1;
    char path[4096];
    if (argc < 4) return 126;
    const unsigned refusal = SECCOMP_RET_ERRNO | (strcmp(argv[1], "EPERM") == 0 ? EPERM : ENOSYS);
    for (char *save, *name = strtok_r(argv[2], ",", &save); name != NULL; name = strtok_r(NULL, ",", &save)) {
        code[n++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, number_of(name), 0, 1);
        code[n++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, refusal);
    }
    code[n++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
    const struct sock_fprog filter = {n, code};
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 ||
        prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) != 0)
        return 77; /* a filter of ours is refused itself */
    snprintf(path, sizeof path, "%s/%s", dirname(argv[0]), argv[3]);
    execv(path, argv + 3);
    return 127;
}
