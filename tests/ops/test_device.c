/* test_device.c - finding and refusing device libraries. */
#include <setjmp.h>
#include <sched.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "core/log.h"
#include "tests/ops/trial.h"

/* Promise: No thread of a rank is bound to a core. */
#ifdef EN_HAVE_ONEDNN
#include "ops/cpu/cpu.h"
#endif

static char last_error[1024];

static void keep_error(void *user, int level, const char *subsystem, const char *text)
{
    (void)user, (void)subsystem;
    if (level == ENI_LOG_ERROR) snprintf(last_error, sizeof last_error, "%s", text);
}

/* Opening `spec` must fail so, with one error that names `word`. */
static void refuse(const char *spec, const char *folder, int threads, en_status want, const char *word)
{
    eni_device device = {0};
    last_error[0] = '\0';
    assert_int_equal(eni_device_open(spec, folder, threads, &device), want);
    if (!strstr(last_error, word))
        fail_msg("\"%s\": the error \"%s\" does not name \"%s\"", spec, last_error, word);
    assert_null(device.ctx);
    eni_device_close(&device); /* safe on what was never opened */
}

static void a_name_that_is_none_is_refused(void **state)
{
    (void)state;
    const char *specs[] = {"",
                           ":",
                           ":0",
                           "cuda:",
                           "cuda:x",
                           "cuda:-1",
                           "cuda:0x",
                           "../cpu",
                           "CPU",
                           "a/b",
                           "averyveryverylongname",
                           "cuda:99999999999999999999"};
    for (size_t i = 0; i < sizeof specs / sizeof *specs; i++)
        refuse(specs[i], EN_BUILD_DIR, 1, EN_EINVAL, specs[i]);
    refuse("ref", "", 0, EN_EINVAL, "0 threads");
}

static void an_absent_library_names_the_remedy(void **state)
{
    (void)state;
    refuse("cpu", "/nonexistent", 1, EN_ENOENT, "libdnnl-dev");
    refuse("cuda:1", "/nonexistent", 1, EN_ENOENT, "/nonexistent/device_cuda.so");
    refuse("abacus", "/nonexistent", 1, EN_ENOENT, "abacus");
}

static void a_wrong_library_is_refused(void **state)
{
    (void)state;
    const char *folder = EN_BUILD_DIR "/test/devices";
    refuse("wrong1", folder, 1, EN_EVERSION, "ABI 43");
    refuse("wrong2", folder, 1, EN_EVERSION, "16 bytes");
    refuse("wrong3", folder, 1, EN_EVERSION, "ABI 2");
    refuse("wrong4", folder, 1, EN_EFORMAT, "en_device_entry");
    refuse("wrong6", folder, 1, EN_EVERSION, "\"right\"");
}

static void a_file_that_is_no_library_is_refused(void **state)
{
    (void)state;
    char folder[] = "/tmp/entrain-device-XXXXXX", path[64];
    assert_non_null(mkdtemp(folder));
    snprintf(path, sizeof path, "%s/device_text.so", folder);
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    fputs("not a library", file);
    fclose(file);
    refuse("text", folder, 1, EN_EFORMAT, "device_text.so");
    assert_non_null(strstr(last_error, "install"));
    remove(path);
    remove(folder);
}

/* Half of a good one would end the process with SIGBUS. */
static void a_library_that_is_cut_off_is_refused(void **state)
{
    (void)state;
    static char bytes[1 << 20];
    char folder[] = "/tmp/entrain-device-XXXXXX", path[64];
    FILE *file = fopen(EN_BUILD_DIR "/test/devices/device_wrong1.so", "r");
    assert_non_null(file);
    const size_t n = fread(bytes, 1, sizeof bytes, file);
    fclose(file);
    assert_non_null(mkdtemp(folder));
    snprintf(path, sizeof path, "%s/device_half.so", folder);
    file = fopen(path, "w");
    assert_non_null(file);
    assert_int_equal(fwrite(bytes, 1, n / 2, file), n / 2);
    fclose(file);
    refuse("half", folder, 1, EN_EFORMAT, "device_half.so");
    remove(path);
    remove(folder);
}

/* wrong5 needs a library that is called libcudnn_absent.so, which is not where the loader looks. */
static void a_library_that_misses_another_names_the_package(void **state)
{
    (void)state;
    refuse("wrong5", EN_BUILD_DIR "/test/devices", 1, EN_EUNSUPPORTED, "libcudnn_absent.so");
    assert_non_null(strstr(last_error, "libcudnn9"));
    assert_non_null(strstr(last_error, "--device=cpu"));
}

static void a_spec_says_which_ones_or_leaves_it_open(void **state)
{
    static const struct {
        const char *spec, *kind;
        int n, last;
        bool is_all;
    } good[] = {{"cuda", "cuda", 0, 0, false},
                {"cuda:0", "cuda", 1, 0, false},
                {"cuda:17", "cuda", 1, 17, false},
                {"cuda:all", "cuda", 0, 0, true},
                {"cpu:0,cpu:1", "cpu", 2, 1, false},
                {"cuda:3,cuda:1,cuda:1023", "cuda", 3, 1023, false},
                {"auto", "ref", 0, 0, false},
                {"ref:0,ref:1,ref:5", "ref", 3, 5, false},
                {"wrong1:4,wrong1:0", "wrong1", 2, 0, false}};
    (void)state;
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        eni_device_list list = {.n = 5};
        assert_int_equal(eni_device_list_parse(good[i].spec, "/nonexistent", &list), EN_OK);
        assert_string_equal(list.kind, good[i].kind);
        assert_int_equal(list.n, good[i].n);
        assert_int_equal(list.is_all, good[i].is_all);
        if (list.n > 0) assert_int_equal(list.index[list.n - 1], good[i].last);
    }
}

static void a_spec_that_is_none_is_refused(void **state)
{
    static const char *const bad[][2] = {
        {"", "cpu:0,cpu:1"},          {"cuda: 1", "cuda:INDEX"},       {"cuda:+1", "cuda:INDEX"},
        {"cuda:1024", "INDEX"},       {"cuda:", "cuda:INDEX"},         {"cuda:99999999999", "cuda:INDEX"},
        {"cpu,cpu", "cpu:0,cpu:1"},   {"cpu:0,", "cpu:0,cpu:1"},       {",cpu:0", "cpu:0,cpu:1"},
        {"cpu:0,,cpu:1", "cpu:0,"},   {"cpu:0,1", "cpu:0,cpu:1"},      {"cpu:0,cpu", "cpu:0,cpu:1"},
        {"cpu:all", "cuda:all"},      {"cuda:all,cuda:0", "cuda:all"}, {"auto:0", "cpu:0,cpu:1"},
        {"cpu:0,cuda:0", "one kind"}, {"cpu:0,cpu0:1", "one kind"},    {"cpu:1,cpu:0,cpu:01", "once"}};
    eni_device_list list = {.n = 5};
    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        last_error[0] = '\0';
        assert_int_equal(eni_device_list_parse(bad[i][0], "", &list), EN_EINVAL);
        if (strstr(last_error, bad[i][1]) == NULL) fail_msg("%s: %s", bad[i][0], last_error);
    }
    char many[16 * (ENI_DEVICES_MAX + 1)] = "cpu:0";
    for (int i = 1; i <= ENI_DEVICES_MAX; i++)
        snprintf(many + strlen(many), 16, ",cpu:%d", i);
    assert_int_equal(eni_device_list_parse(many, "", &list), EN_EINVAL);
    assert_non_null(strstr(last_error, "64 devices"));
    assert_int_equal(list.n, 5);
    *strrchr(many, ',') = '\0';
    assert_int_equal(eni_device_list_parse(many, "", &list), EN_OK);
    assert_int_equal(list.n, ENI_DEVICES_MAX);
}

/* cpu:0 and cpu:1: the same library, a device each. */
static void one_is_opened_at_a_time(void **state)
{
    eni_device first, second;
    (void)state;
    assert_int_equal(eni_device_open("ref:0", "", 1, &first), EN_OK);
    assert_int_equal(eni_device_open("ref:1", "", 1, &second), EN_OK);
    assert_ptr_equal(first.ops, second.ops);
    eni_device_close(&first);
    eni_device_close(&second);
    refuse("ref:0,ref:1", "", 1, EN_EINVAL, "2 devices");
}

static void host_devices_say_that_short_floats_take_a_gpu(void **state)
{
    (void)state;
    eni_device devices[2];
    int n = 1;
    assert_int_equal(eni_device_open("ref", "", 1, &devices[0]), EN_OK);
    n += open_cpu(&devices[1], 1);
    for (int d = 0; d < n; d++) {
        assert_null(devices[d].ops->gpu);
        en_op ops[3] = {linear_op(4, 5, 6, 0), plain_op(EN_OP_RELU, (en_extent){2, 3, 4, 5}),
                        plain_op(EN_OP_CAST, (en_extent){2, 3, 4, 5})};
        ops[0].dtype = EN_BF16;
        ops[1].dtype = EN_F16;
        for (int i = 0; i < 3; i++) {
            en_plan *plan = NULL;
            last_error[0] = '\0';
            assert_int_equal(devices[d].ops->plan(devices[d].ctx, &ops[i], &plan), EN_EUNSUPPORTED);
            assert_null(plan);
            if (!strstr(last_error, "GPU")) fail_msg("%s, %d: \"%s\"", devices[d].ops->name, i, last_error);
        }
        eni_device_close(&devices[d]);
    }
}

static void ref_opens_without_a_plugin(void **state)
{
    (void)state;
    eni_device device;
    assert_int_equal(eni_device_open("ref", "/nonexistent", 3, &device), EN_OK);
    assert_string_equal(device.ops->name, "ref");
    assert_non_null(device.ops->describe(device.ctx));
    eni_device_close(&device);
    eni_device_close(&device);
}

static void cpu_gets_its_threads_and_says_so(void **state)
{
    (void)state;
    eni_device device;
    setenv("OMP_NUM_THREADS", "7", 1);
    setenv("OMP_WAIT_POLICY", "active", 1);
    if (!open_cpu(&device, 2)) skip();
    assert_string_equal(getenv("OMP_NUM_THREADS"), "2");
    assert_string_equal(getenv("OMP_WAIT_POLICY"), "passive");
    assert_non_null(strstr(device.ops->describe(device.ctx), "oneDNN"));
    assert_non_null(strstr(device.ops->describe(device.ctx), "2 threads"));
    eni_device_close(&device);
}

static void memory_is_zeroed_aligned_and_copied(void **state)
{
    (void)state;
    eni_device devices[2];
    int n = 1;
    assert_int_equal(eni_device_open("ref", "", 1, &devices[0]), EN_OK);
    n += open_cpu(&devices[1], 1);
    for (int d = 0; d < n; d++) {
        const en_device *ops = devices[d].ops;
        en_ctx *ctx = devices[d].ctx;
        void *a, *empty;
        unsigned char in[100], out[100];
        assert_int_equal(ops->alloc(ctx, 100, &a), EN_OK);
        assert_int_equal(ops->alloc(ctx, 0, &empty), EN_OK);
        assert_int_equal((uintptr_t)a % ops->align, 0);
        memset(in, 7, sizeof in);
        assert_int_equal(ops->copy(ctx, out, a, 100, EN_COPY_OUT), EN_OK);
        assert_int_equal(ops->sync(ctx), EN_OK);
        for (int i = 0; i < 100; i++)
            assert_int_equal(out[i], 0);
        assert_int_equal(ops->copy(ctx, a, in, 100, EN_COPY_IN), EN_OK);
        assert_int_equal(ops->zero(ctx, a, 50), EN_OK);
        assert_int_equal(ops->copy(ctx, out, a, 100, EN_COPY_OUT), EN_OK);
        assert_int_equal(ops->sync(ctx), EN_OK);
        for (int i = 0; i < 100; i++)
            assert_int_equal(out[i], i < 50 ? 0 : 7);
#if !defined(__SANITIZE_ADDRESS__) &&                                                                        \
    !defined(__SANITIZE_THREAD__) /* their malloc ends the program instead */
        void *huge = NULL;
        assert_int_equal(ops->alloc(ctx, UINT64_MAX / 2, &huge), EN_ENOMEM);
        assert_null(huge);
#endif
        ops->free(ctx, a);
        ops->free(ctx, empty);
        ops->free(ctx, NULL);
        eni_device_close(&devices[d]);
    }
}

/* ---- ulimit -v ---- */

static rlim_t mapped_bytes(void)
{
    unsigned long pages = 0;
    FILE *file = fopen("/proc/self/statm", "r");
    assert_non_null(file);
    assert_int_equal(fscanf(file, "%lu", &pages), 1);
    fclose(file);
    return (rlim_t)pages * (rlim_t)sysconf(_SC_PAGESIZE);
}

enum { ROOM_FLOATS = 1 << 19 }; /* of every tensor below */

/* Forward and backward; not EN_OK: refused. */
static en_status train_layer(const eni_device *device, const en_op *op, float *const at[8])
{
    en_plan *plan = NULL;
    en_plan_info info = {.size = sizeof info};
    en_status st = device->ops->plan(device->ctx, op, &plan);
    if (st != EN_OK) return st;
    device->ops->plan_info(plan, &info);
    void *saved = malloc(info.saved_bytes + 64), *workspace = malloc(info.workspace_bytes + 64);
    const en_args args = {.size = sizeof args,
                          .x = at[0],
                          .y = at[1],
                          .w = at[2],
                          .b = at[3],
                          .dy = at[4],
                          .dx = at[5],
                          .dw = at[6],
                          .db = at[7],
                          .saved = saved,
                          .workspace = workspace};
    if (saved == NULL || workspace == NULL) _exit(1); /* the caller's business */
    st = device->ops->forward(plan, &args);
    if (st == EN_OK) st = device->ops->backward_weights(plan, &args);
    if (st == EN_OK) st = device->ops->backward_data(plan, &args);
    device->ops->plan_free(plan);
    free(saved);
    free(workspace);
    return st;
}

/* In a process that may map so much more: 0, trained; 1, refused with the remedy; 2, refused without. */
static int use_cpu(rlim_t more, int threads)
{
    const en_op ops[2] = {linear_op(32, 784, 500, 0), conv_op((en_extent){32, 8, 28, 28}, 16, 5, 1, 2, 0)};
    eni_device device = {0};
    float *at[8];
    for (int i = 0; i < 8; i++)
        if ((at[i] = calloc(ROOM_FLOATS, sizeof(float))) == NULL) return 3;
    const rlim_t most = mapped_bytes() + more;
    if (setrlimit(RLIMIT_AS, &(struct rlimit){most, most}) != 0) return 3;
    last_error[0] = '\0';
    en_status st = eni_device_open("cpu", EN_BUILD_DIR "/plugins", threads, &device);
    for (int i = 0; i < 2 && st == EN_OK; i++)
        st = train_layer(&device, &ops[i], at);
    return st == EN_OK ? 0 : strstr(last_error, "ulimit -v") != NULL ? 1 : 2;
}

/* It would end the process where there is no room for what it maps itself. */
static void cpu_is_refused_where_there_is_no_room(void **state)
{
    (void)state;
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    skip(); /* they map terabytes */
#endif
    const en_device *table;
    if (eni_device_load("cpu", EN_BUILD_DIR "/plugins", &table) != EN_OK) skip();
    int refused = 0, trained = 0;
    for (int threads = 1; threads <= 3; threads += 2)
        for (int mb = 0; mb <= 96; mb += mb < 48 ? 1 : 8) {
            int status;
            const pid_t pid = fork();
            if (pid == 0) _exit(use_cpu((rlim_t)mb << 20, threads));
            assert_int_equal(waitpid(pid, &status, 0), pid);
            if (!WIFEXITED(status) || WEXITSTATUS(status) > 1)
                fail_msg("%d threads, %d MB more: status 0x%x", threads, mb, (unsigned)status);
            refused += WEXITSTATUS(status);
            trained += WEXITSTATUS(status) == 0;
        }
    assert_true(refused > 0 && trained > 0);
}

static cpu_set_t may_run_on; /* when the program started */

/* Each of several ranks would bind its computing thread to the same first core. */
static void openmp_binds_no_thread(void **state)
{
    eni_device device;
    cpu_set_t now;
    (void)state;
    if (!open_cpu(&device, 2)) skip();
    assert_int_equal(sched_getaffinity(0, sizeof now, &now), 0);
    assert_true(CPU_EQUAL(&now, &may_run_on));
    eni_device_close(&device);
}

/* Before anything loads OpenMP. */
/* A refusal names the operation and a remedy; oneDNN's own name of the failure is for its developers. */
static void a_failure_of_onednn_is_a_sentence(void **state)
{
    (void)state;
#ifdef EN_HAVE_ONEDNN
    static const struct {
        dnnl_status_t status;
        en_status want;
        const char *remedy;
    } cases[] = {
        {dnnl_unimplemented, EN_EUNSUPPORTED, "--device=ref"},
        {dnnl_out_of_memory, EN_ENOMEM, "memory"},
        {dnnl_invalid_arguments, EN_EBUG, "--device=ref"},
        {dnnl_runtime_error, EN_EBUG, "--device=ref"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        assert_int_equal(eni_dnnl_check(cases[i].status, "a convolution"), cases[i].want);
        assert_non_null(strstr(last_error, "oneDNN"));
        assert_non_null(strstr(last_error, "a convolution"));
        assert_non_null(strstr(last_error, cases[i].remedy));
    }
    assert_int_equal(eni_dnnl_check(dnnl_success, "a convolution"), EN_OK);
#else
    skip();
#endif
}

static void ask_for_bound_threads(void)
{
    assert_int_equal(sched_getaffinity(0, sizeof may_run_on, &may_run_on), 0);
    setenv("OMP_PROC_BIND", "true", 1);
    setenv("GOMP_CPU_AFFINITY", "0", 1);
}

int main(void)
{
    ask_for_bound_threads();
    eni_log_set_sink(keep_error, NULL);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_name_that_is_none_is_refused),
        cmocka_unit_test(an_absent_library_names_the_remedy),
        cmocka_unit_test(a_wrong_library_is_refused),
        cmocka_unit_test(a_file_that_is_no_library_is_refused),
        cmocka_unit_test(a_library_that_is_cut_off_is_refused),
        cmocka_unit_test(a_library_that_misses_another_names_the_package),
        cmocka_unit_test(a_spec_says_which_ones_or_leaves_it_open),
        cmocka_unit_test(a_spec_that_is_none_is_refused),
        cmocka_unit_test(one_is_opened_at_a_time),
        cmocka_unit_test(host_devices_say_that_short_floats_take_a_gpu),
        cmocka_unit_test(ref_opens_without_a_plugin),
        cmocka_unit_test(cpu_gets_its_threads_and_says_so),
        cmocka_unit_test(memory_is_zeroed_aligned_and_copied),
        cmocka_unit_test(cpu_is_refused_where_there_is_no_room),
        cmocka_unit_test(openmp_binds_no_thread),
        cmocka_unit_test(a_failure_of_onednn_is_a_sentence),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
