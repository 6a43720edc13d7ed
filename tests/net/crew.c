/* crew.c - see crew.h. */
#include "crew.h"

#include <stdio.h>
#include <string.h>

#include "runtime/core/clock.h"
#include "runtime/core/log.h"

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

bool crew_logged(const char *text)
{
    pthread_mutex_lock(&log_lines.lock);
    bool is_there = strstr(log_lines.text, text) != NULL;
    if (!is_there) fprintf(stderr, "not logged: %s\nbut:\n%s", text, log_lines.text);
    pthread_mutex_unlock(&log_lines.lock);
    return is_there;
}

int64_t crew_soon(void)
{
    return eni_now_ns() + 10 * ENI_SECOND;
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
                                    .epoch = 1,
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

void crew_fini(crew *c)
{
    for (int r = 0; r < CREW_MAX; r++)
        eni_member_close(c->hand[r].member);
    eni_leader_stop(c->leader);
    eni_log_set_sink(NULL, NULL);
}
