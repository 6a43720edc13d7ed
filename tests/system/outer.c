/* outer.c - see outer.h. */
#include "tests/system/outer.h"

#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/port.h"

const char *outer_tool(const char *name)
{
    static char paths[8][512];
    static int next;
    char list[4096];
    const char *path = getenv("PATH");
    snprintf(list, sizeof list, "%s:%s:/usr/sbin:/sbin", EN_PYTHON_BIN, path == NULL ? "" : path);
    for (char *save, *dir = strtok_r(list, ":", &save); dir != NULL; dir = strtok_r(NULL, ":", &save)) {
        char *found = paths[next % 8];
        if (snprintf(found, sizeof paths[0], "%s/%s", dir, name) >= (int)sizeof paths[0]) continue;
        if (access(found, X_OK) != 0) continue;
        next++;
        return found;
    }
    return NULL;
}

const char *outer_need(const char *name, const char *package)
{
    const char *path = outer_tool(name);
    if (path == NULL) system_skip("%s is not installed (%s)", name, package);
    return path;
}

int outer_torchrun_works(void)
{
    char command[640];
    snprintf(command, sizeof command,
             "timeout 120 %s --standalone --no_python --nproc_per_node=1 /bin/true >/dev/null 2>&1",
             outer_tool("torchrun"));
    return system(command) == 0; /* NOLINT: our own words */
}

int outer_port(void)
{
    for (int tries = 0; tries < 100; tries++) {
        const int port = free_port();
        if (port_hold(port + 1) >= 0) return port; /* as long as this process lives */
    }
    fail_msg("no two free ports in a row");
    return 0;
}

const char *outer_token_file(void)
{
    static char path[128];
    snprintf(path, sizeof path, "%s/token", system_folder());
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    fputs("00112233445566778899aabbccddeeff\n", file);
    fclose(file);
    assert_int_equal(chmod(path, 0600), 0);
    return path;
}

const char *outer_folder(void)
{
    static char paths[8][128];
    static int n;
    char *path = paths[n % 8];
    snprintf(path, sizeof paths[0], "%s/outer%d", system_folder(), n++);
    return path;
}

void outer_await_leader(const process *zero)
{
    char path[160];
    const double deadline = now_seconds() + GUARD * SLOWNESS;
    snprintf(path, sizeof path, "%s/entrain/status-%d", system_folder(), (int)zero->pid);
    while (access(path, F_OK) != 0) {
        struct pollfd ended = {.fd = zero->pidfd, .events = POLLIN};
        if (poll(&ended, 1, 5) > 0 || now_seconds() > deadline)
            fail_msg("%s does not lead:\n%s", zero->name, process_err(zero));
    }
}

void outer_expect_end(process *p, int code)
{
    int got = process_wait(p, 60);
    if (got != code) fail_msg("%s ended with %d:\n%s%s", p->name, got, process_out(p), process_err(p));
}

void outer_expect_hash(const char *folder, const char *expected)
{
    char path[256];
    snprintf(path, sizeof path, "%s/result.json", folder);
    json_t *result = json_load_file(path, 0, NULL);
    if (result == NULL) fail_msg("%s is not there", path);
    assert_string_equal(text_at(result, "params_sha256"), expected);
    json_decref(result);
}

/* ---- hosts ---- */

static int nhosts; /* made; the bridge is in a namespace of its own */

static int ip(const char *format, ...) __attribute__((format(printf, 1, 2)));
static int ip(const char *format, ...)
{
    char args[512], command[1024];
    va_list list;
    const char *tool = outer_tool("ip");
    va_start(list, format);
    vsnprintf(args, sizeof args, format, list);
    va_end(list);
    snprintf(command, sizeof command, "%s %s >/dev/null 2>&1", tool, args);
    return system(command); /* NOLINT: our own words */
}

/* "entrain-PID-0" */
static const char *name_of(int host)
{
    static char names[OUTER_HOSTS_MAX][40];
    snprintf(names[host], sizeof names[host], "entrain-%d-%d", (int)getpid(), host);
    return names[host];
}

static void remove_hosts(void)
{
    for (int i = 0; i < nhosts; i++)
        ip("netns del %s", name_of(i));
    if (nhosts > 0) ip("netns del entrain-%d-sw", (int)getpid());
    nhosts = 0;
}

static int add_host(int i, int pid)
{
    return ip("netns add %s", name_of(i)) == 0 &&
           ip("link add eth0 netns %s type veth peer name v%d netns entrain-%d-sw", name_of(i), i, pid) ==
               0 &&
           ip("-n entrain-%d-sw link set v%d master br0 up", pid, i) == 0 &&
           ip("-n %s link set lo up", name_of(i)) == 0 &&
           ip("-n %s addr add %s/24 dev eth0", name_of(i), outer_host_address(i)) == 0 &&
           ip("-n %s link set eth0 up", name_of(i)) == 0;
}

void outer_make_hosts(int n)
{
    const int pid = (int)getpid();
    if (nhosts >= n) return;
    outer_need("ip", "Debian: iproute2");
    if (geteuid() != 0) system_skip("network namespaces need root");
    if (ip("netns add entrain-%d-sw", pid) != 0) system_skip("`ip netns add` is not allowed here");
    atexit(remove_hosts);
    nhosts = n; /* to be removed at the end from now on, complete or not */
    int is_made = ip("-n entrain-%d-sw link add br0 type bridge", pid) == 0 &&
                  ip("-n entrain-%d-sw link set br0 up", pid) == 0;
    for (int i = 0; i < n && is_made; i++)
        is_made = add_host(i, pid);
    if (!is_made) system_skip("this kernel gives no veth or bridge");
}

const char *outer_host_address(int host)
{
    static char addresses[OUTER_HOSTS_MAX][32];
    snprintf(addresses[host], sizeof addresses[host], "10.77.0.%d", host + 1);
    return addresses[host];
}

void outer_start_on(process *p, int host, const char *program, const char *format, ...)
{
    char args[3072];
    va_list list;
    va_start(list, format);
    vsnprintf(args, sizeof args, format, list);
    va_end(list);
    assert_in_range(host, 0, nhosts - 1);
    int is_path = strchr(program, '/') != NULL; /* `ip netns exec` becomes the program: one process */
    process_start(p, outer_tool("ip"), NULL, "netns exec %s %s%s %s", name_of(host),
                  is_path ? "" : EN_BUILD_DIR "/", program, args);
    snprintf(p->name, sizeof p->name, "%s@%d", program, host);
}

void outer_cable(int host, int is_up)
{
    assert_int_equal(ip("-n entrain-%d-sw link set v%d %s", (int)getpid(), host, is_up ? "up" : "down"), 0);
}
