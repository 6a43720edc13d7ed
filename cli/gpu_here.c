/* gpu_here.c - see gpu_here.h. */
#include "cli/gpu_here.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/clock.h"
#include "core/log.h"
#include "core/try.h"
#include "ops/device.h"
#include "ops/gpu_of_rank.h"

enum { TIMEOUT_S = 60 }; /* a driver that is just being loaded takes seconds */

static en_status ask(const char *device, const char *plugin_dir)
{
    const en_device *table;
    EN_TRY(eni_device_load("cuda", plugin_dir, &table));
    return eni_gpu_check(device, table, eni_device_host());
}

/* EN_OK once the child has ended. */
static en_status await(int pidfd, int signal_fd)
{
    struct pollfd set[2] = {{pidfd, POLLIN, 0}, {signal_fd, POLLIN, 0}};
    const int64_t deadline = eni_now_ns() + TIMEOUT_S * ENI_SECOND;
    while (set[0].revents == 0) {
        const int n = poll(set, 2, eni_ms_left(deadline, 1000));
        if (n > 0 && set[1].revents != 0) return EN_EINTR;
        if (eni_now_ns() < deadline) continue;
        eni_error("launch",
                  "the NVIDIA driver has not said within %d s which GPUs there are: does nvidia-smi "
                  "answer? --device=cpu goes without",
                  TIMEOUT_S);
        return EN_EINVAL;
    }
    return EN_OK;
}

/* The child has said what is wrong. One that crashed leaves the answer to the ranks, who say more of it. */
static en_status take_answer(pid_t pid, en_status waited)
{
    int status = 0;
    if (waited != EN_OK) kill(pid, SIGKILL);
    /* a process that hangs in the driver cannot be waited for */
    const pid_t ended = waitpid(pid, &status, waited == EN_OK ? 0 : WNOHANG);
    if (waited != EN_OK) return waited;
    return ended == pid && WIFEXITED(status) && WEXITSTATUS(status) != 0 ? EN_EINVAL : EN_OK;
}

en_status eni_gpu_here(const char *device, const char *plugin_dir, int signal_fd)
{
    if (!eni_device_is_gpu(device)) return EN_OK;
    const pid_t own = getpid(), pid = fork();
    if (pid == 0) {
        if (prctl(PR_SET_PDEATHSIG, SIGKILL) != 0 || getppid() != own) _exit(0);
        _exit(ask(device, plugin_dir) == EN_OK ? 0 : 1);
    }
    const int pidfd = pid < 0 ? -1 : (int)syscall(SYS_pidfd_open, pid, 0);
    if (pid < 0) {
        eni_error("launch", "cannot start a process that asks for GPUs: %s", strerror(errno));
        return EN_EIO;
    }
    const en_status st = take_answer(pid, pidfd < 0 ? EN_OK : await(pidfd, signal_fd));
    if (pidfd >= 0) close(pidfd);
    return st;
}
