/* crew.c - see crew.h. */
#include "crew.h"

#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

#include "core/clock.h"
#include "core/log.h"

static struct {
    pthread_mutex_t lock;
    char text[65536];
} log_lines = {PTHREAD_MUTEX_INITIALIZER, ""};

static void catch_line(void *user, int level, const char *subsystem, const char *text)
{
    (void)user;
    pthread_mutex_lock(&log_lines.lock);
    size_t used = strlen(log_lines.text);
    snprintf(log_lines.text + used, sizeof log_lines.text - used, "%d %s: %s\n", level, subsystem, text);
    pthread_mutex_unlock(&log_lines.lock);
}

bool crew_has(const char *text, const char *words)
{
    char word[256];
    while (text != NULL && *words != '\0') {
        const int length = (int)strcspn(words, "*");
        snprintf(word, sizeof word, "%.*s", length, words);
        text = strstr(text, word);
        if (text != NULL) text += length;
        words += length + (words[length] == '*');
    }
    return text != NULL;
}

static bool has_line(const char *words)
{
    char line[2048];
    pthread_mutex_lock(&log_lines.lock);
    bool is_there = false;
    for (const char *at = log_lines.text; *at != '\0' && !is_there; at += *at == '\n') {
        const size_t length = strcspn(at, "\n");
        snprintf(line, sizeof line, "%.*s\n", (int)length, at);
        is_there = crew_has(line, words);
        at += length;
    }
    pthread_mutex_unlock(&log_lines.lock);
    return is_there;
}

bool crew_logged(const char *words)
{
    const bool is_there = has_line(words);
    if (!is_there) fprintf(stderr, "not logged: %s\nbut:\n%s", words, log_lines.text);
    return is_there;
}

int crew_count(const char *text)
{
    int n = 0;
    pthread_mutex_lock(&log_lines.lock);
    for (const char *at = log_lines.text; (at = strstr(at, text)) != NULL; at += strlen(text))
        n++;
    pthread_mutex_unlock(&log_lines.lock);
    return n;
}

bool crew_await_logged(const char *words)
{
    int64_t deadline = crew_soon();
    while (!has_line(words) && eni_now_ns() < deadline)
        poll(NULL, 0, 2);
    return crew_logged(words);
}

double crew_await_number(const char *text)
{
    double number = -1;
    if (!crew_await_logged(text)) return -1;
    pthread_mutex_lock(&log_lines.lock);
    sscanf(strstr(log_lines.text, text) + strlen(text), "%lf", &number);
    pthread_mutex_unlock(&log_lines.lock);
    return number;
}

int64_t crew_soon(void)
{
    return eni_now_ns() + 60 * ENI_SECOND;
}

void crew_init(crew *c, int n)
{
    log_lines.text[0] = '\0';
    eni_log_set_sink(catch_line, NULL);
    memset(c, 0, sizeof *c);
    c->n = n;
    c->config = (eni_leader_config){.listen = {"127.0.0.1", 0},
                                    .listen_fd = -1,
                                    .nranks = n,
                                    .rank = -1,
                                    .host = "h",
                                    .host_id = "h/1",
                                    .join_ns = 10 * ENI_SECOND};
    eni_token_make(&c->config.token);
    for (int r = 0; r < CREW_MAX; r++)
        c->hand[r].config = (eni_member_config){.token = c->config.token,
                                                .rank = r,
                                                .nranks = n,
                                                .host = "h",
                                                .host_id = "h/1",
                                                .join_deadline_ns = crew_soon(),
                                                .abort_fd = -1};
}

bool crew_start(crew *c)
{
    if (eni_leader_start(&c->config, &c->leader) != EN_OK) return false;
    for (int r = 0; r < CREW_MAX; r++)
        c->hand[r].config.leader = *eni_leader_address(c->leader);
    return true;
}

static void *open_hand(void *argument)
{
    crew_hand *hand = argument;
    hand->status = eni_member_open(&hand->config, &hand->member);
    return NULL;
}

void crew_join(crew *c, int first, int n)
{
    for (int r = first; r < first + n; r++)
        pthread_create(&c->hand[r].thread, NULL, open_hand, &c->hand[r]);
    for (int r = first; r < first + n; r++)
        pthread_join(c->hand[r].thread, NULL);
}

bool crew_bye(crew *c)
{
    bool is_well = true;
    for (int r = 0; r < CREW_MAX; r++)
        if (c->hand[r].member != NULL) is_well &= eni_member_bye(c->hand[r].member, crew_soon()) == EN_OK;
    return eni_leader_wait(c->leader, crew_soon(), -1) == EN_OK && is_well;
}

int crew_listen(crew *c)
{
    int fd;
    eni_address bound;
    if (eni_tcp_listen(&c->config.listen, false, &fd, &bound) != EN_OK) return -1;
    for (int r = 0; r < CREW_MAX; r++)
        c->hand[r].config.leader = bound;
    return fd;
}

/* A heartbeat that has these samples has this step: it is made under the member's lock, step first. */
static void note(eni_member *member, int64_t step, const char *phase, uint64_t samples)
{
    eni_member_note(member, step, phase);
    (void)eni_member_outcome(member); /* a heartbeat under construction is finished */
    eni_member_note_samples(member, samples);
}

static bool await_samples(const crew *c, uint64_t samples)
{
    const int64_t deadline = crew_soon();
    while (eni_leader_samples(c->leader) < samples && eni_now_ns() < deadline)
        poll(NULL, 0, 2);
    return eni_leader_samples(c->leader) >= samples;
}

bool crew_note(crew *c, int hand, int64_t step, const char *phase)
{
    c->samples++;
    note(c->hand[hand].member, step, phase, ++c->hand[hand].samples);
    return await_samples(c, c->samples);
}

/* In the victim. */
static void work_until_killed(crew *c, int rank, int listener, bool is_held, int ready)
{
    pid_t holder = 0;
    prctl(PR_SET_PDEATHSIG, SIGKILL); /* a failing test leaves no process behind */
    eni_log_set_level(-1);
    close(listener);
    if (eni_member_open(&c->hand[rank].config, &c->hand[rank].member) != EN_OK) _exit(1);
    if (is_held) holder = fork();
    while (is_held && holder == 0)
        pause();
    note(c->hand[rank].member, 41, "backward", 1);
    if (write(ready, &holder, sizeof holder) != sizeof holder) _exit(1);
    for (;;)
        pause();
}

pid_t crew_fork_victim(crew *c, int rank, int listener, bool is_held, int *ready_out)
{
    int ends[2];
    if (pipe(ends) != 0) return -1;
    pid_t pid = fork();
    if (pid == 0) work_until_killed(c, rank, listener, is_held, ends[1]);
    close(ends[1]);
    *ready_out = ends[0];
    return pid;
}

pid_t crew_await_ready(crew *c, int ready)
{
    pid_t holder = -1;
    struct pollfd set = {ready, POLLIN, 0};
    if (poll(&set, 1, 60000) != 1 || read(ready, &holder, sizeof holder) != sizeof holder) holder = -1;
    close(ready);
    if (holder < 0 || c->leader == NULL) return holder;
    c->samples++;
    return await_samples(c, c->samples) ? holder : -1;
}

void crew_fini(crew *c)
{
    for (int r = 0; r < CREW_MAX; r++)
        eni_member_close(c->hand[r].member);
    eni_leader_stop(c->leader);
    eni_log_set_sink(NULL, NULL);
    eni_log_set_level(ENI_LOG_INFO);
}
