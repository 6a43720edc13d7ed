/* test_host_info.c - host, identity, route and cores of this process. */
#include <errno.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "runtime/net/host_info.h"

static void identity_is_stable_and_can_be_overridden(void **state)
{
    (void)state;
    char host[ENI_HOST_MAX], a[ENI_HOST_ID_MAX], b[ENI_HOST_ID_MAX], longest[200];
    eni_host_info_name(host);
    assert_true(host[0] != '\0');
    assert_int_equal(eni_host_info_id(NULL, a), EN_OK);
    assert_int_equal(eni_host_info_id("", b), EN_OK);
    assert_string_equal(a, b);
    assert_true(strlen(a) > 8);
    assert_int_equal(eni_host_info_id("node-b", b), EN_OK);
    assert_string_equal(b, "node-b");
    memset(longest, 'x', sizeof longest - 1);
    longest[sizeof longest - 1] = '\0';
    assert_int_equal(eni_host_info_id(longest, b), EN_EINVAL);
}

static void what_keeps_processes_of_a_machine_apart_is_told(void **state)
{
    (void)state;
    const char *own = "boot/4026531840/1000";
    assert_null(eni_host_info_apart(own, own));
    assert_null(eni_host_info_apart(own, "other/4026531841/1000"));
    assert_null(eni_host_info_apart(own, "boot-2/4026531841/1000"));
    assert_null(eni_host_info_apart("node-b", "node-b"));
    assert_null(eni_host_info_apart(own, "boot"));
    assert_non_null(strstr(eni_host_info_apart(own, "boot/4026531841/1000"), "network namespace"));
    assert_non_null(strstr(eni_host_info_apart(own, "boot/4026531840/0"), "user"));
}

static void the_route_to_loopback_is_loopback(void **state)
{
    (void)state;
    eni_own_address own;
    assert_int_equal(eni_host_info_address(&(eni_address){"127.0.0.1", 5555}, &own), EN_OK);
    assert_string_equal(own.host, "127.0.0.1");
    assert_string_equal(own.interface, "lo");
}

static void the_owner_of_a_port_is_named(void **state)
{
    (void)state;
    char text[200], expected[32];
    int fd;
    eni_address bound;
    assert_int_equal(eni_tcp_listen(&(eni_address){"127.0.0.1", 0}, false, &fd, &bound), EN_OK);
    eni_host_info_port_owner(bound.port, text);
    snprintf(expected, sizeof expected, "pid %d (test_", (int)getpid());
    if (strncmp(text, expected, strlen(expected)) != 0) fail_msg("\"%s\" is not \"%s..\"", text, expected);
    close(fd);
    eni_host_info_port_owner(bound.port, text);
    assert_null(strstr(text, "pid "));
}

static void cores_follow_the_affinity_mask(void **state)
{
    (void)state;
    cpu_set_t all, one;
    assert_int_equal(sched_getaffinity(0, sizeof all, &all), 0);
    assert_in_range(eni_host_info_cores(), 1, CPU_COUNT(&all));
    CPU_ZERO(&one);
    for (int c = 0; c < CPU_SETSIZE && CPU_COUNT(&one) == 0; c++)
        if (CPU_ISSET(c, &all)) CPU_SET(c, &one);
    assert_int_equal(sched_setaffinity(0, sizeof one, &one), 0);
    assert_int_equal(eni_host_info_cores(), 1);
    sched_setaffinity(0, sizeof all, &all);
}

static char root[] = "/tmp/entrain-test-XXXXXX";

/* Makes the folders of `path` below the root, and the file. */
static void put(const char *path, const char *text)
{
    char at[256];
    snprintf(at, sizeof at, "%s/%s", root, path);
    for (char *slash = at + strlen(root) + 1; (slash = strchr(slash, '/')) != NULL; *slash++ = '/') {
        *slash = '\0';
        assert_true(mkdir(at, 0755) == 0 || errno == EEXIST);
    }
    FILE *file = fopen(at, "w");
    assert_non_null(file);
    fputs(text, file);
    assert_int_equal(fclose(file), 0);
}

static void the_quota_of_cgroups_is_found(void **state)
{
    (void)state;
    assert_non_null(mkdtemp(root));
    assert_int_equal(eni_host_info_quota(root), INT32_MAX);
    /* version 1: rounded up; -1 is unlimited; the parent's counts too */
    put("proc/self/cgroup", "5:cpuset:/\n4:cpu,cpuacct:/a/b\n3:memory:/m\n0::/x\n");
    put("sys/fs/cgroup/cpu/a/b/cpu.cfs_quota_us", "250000\n");
    assert_int_equal(eni_host_info_quota(root), INT32_MAX); /* of what period? */
    put("sys/fs/cgroup/cpu/a/b/cpu.cfs_period_us", "100000\n");
    assert_int_equal(eni_host_info_quota(root), 3);
    put("sys/fs/cgroup/cpu/a/b/cpu.cfs_quota_us", "-1\n");
    assert_int_equal(eni_host_info_quota(root), INT32_MAX);
    put("sys/fs/cgroup/cpu/a/cpu.cfs_quota_us", "400000\n");
    put("sys/fs/cgroup/cpu/a/cpu.cfs_period_us", "100000\n");
    assert_int_equal(eni_host_info_quota(root), 4);
    put("sys/fs/cgroup/cpu/a/b/cpu.cfs_quota_us", "50000\n");
    assert_int_equal(eni_host_info_quota(root), 1);
    /* the host's path in a container, where the own cgroup is the root */
    put("proc/self/cgroup", "7:cpuacct,cpu:/docker/0123\n");
    assert_int_equal(eni_host_info_quota(root), INT32_MAX);
    put("sys/fs/cgroup/cpu/cpu.cfs_quota_us", "200000\n");
    put("sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n");
    assert_int_equal(eni_host_info_quota(root), 2);
    /* cpuset and cpuacct are other controllers */
    put("proc/self/cgroup", "5:cpuset:/a/b\n4:cpuacct:/a/b\n");
    assert_int_equal(eni_host_info_quota(root), INT32_MAX);
    /* version 2 */
    put("proc/self/cgroup", "0::/s/t\n");
    put("sys/fs/cgroup/s/t/cpu.max", "max 100000\n");
    assert_int_equal(eni_host_info_quota(root), INT32_MAX);
    put("sys/fs/cgroup/s/cpu.max", "550000 100000\n");
    assert_int_equal(eni_host_info_quota(root), 6);
    put("proc/self/cgroup", "0::/\n");
    put("sys/fs/cgroup/cpu.max", "150000 100000\n");
    assert_int_equal(eni_host_info_quota(root), 2);
    char command[64];
    snprintf(command, sizeof command, "rm -r %s", root);
    assert_int_equal(system(command), 0);
}

static void note(void *user, const char *group, const char *name, const char *value)
{
    char *text = user;
    assert_non_null(value);
    size_t used = strlen(text);
    snprintf(text + used, 1024 - used, "%s%s%s=%s;", group == NULL ? "" : group, group == NULL ? "" : ".",
             name, value);
}

/* A result records how it was made; a build outside git says "unknown". */
static void facts_have_the_commit_and_the_libraries(void **state)
{
    (void)state;
    char text[1024] = "";
    eni_host_info_facts("0.1.0+29b8609c01d2", note, text);
    assert_non_null(strstr(text, "version=0.1.0+29b8609c01d2;commit=29b8609c01d2;"));
    assert_ptr_equal(strstr(text, "date=2"), text);
    static const char *const names[] = {"cpu=",
                                        "instruction_set=",
                                        "kernel=",
                                        "compiler=",
                                        "libraries.ZeroMQ=",
                                        "libraries.msgpack-c=",
                                        "libraries.OpenSSL="};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        if (strstr(text, names[i]) == NULL) fail_msg("%s has no %s", text, names[i]);
    text[0] = '\0';
    eni_host_info_facts("0.1.0", note, text);
    assert_non_null(strstr(text, "commit=unknown;"));
    assert_true(eni_host_info_memory() > 1u << 26);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(identity_is_stable_and_can_be_overridden),
                                       cmocka_unit_test(what_keeps_processes_of_a_machine_apart_is_told),
                                       cmocka_unit_test(the_route_to_loopback_is_loopback),
                                       cmocka_unit_test(the_owner_of_a_port_is_named),
                                       cmocka_unit_test(cores_follow_the_affinity_mask),
                                       cmocka_unit_test(the_quota_of_cgroups_is_found),
                                       cmocka_unit_test(facts_have_the_commit_and_the_libraries)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
