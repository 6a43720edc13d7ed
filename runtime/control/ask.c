/* ask.c - asks a leader, and waits for its answer; see ask.h. */
#include "runtime/control/ask.h"

#include <poll.h>
#include <stdio.h>
#include <string.h>

#include "core/log.h"
#include "core/try.h"
#include "runtime/control/message.h"

/* Receives the leader's answer. EN_ETIMEOUT, EN_EPEER: none came. */
static en_status await_answer(eni_link *link, int64_t deadline_ns, eni_message *answer_out)
{
    eni_span frame;
    en_status st;
    while ((st = eni_link_next(link, &frame)) == EN_ETIMEOUT) {
        EN_TRY(eni_tcp_wait(link->fd, POLLIN, deadline_ns, -1));
        const en_status read = eni_link_read(link);
        /* Messages that came before the end of the stream still count. */
        if (read != EN_OK && link->in.bytes == link->in_at) return read;
    }
    EN_TRY(st);
    return eni_message_get(frame.data, frame.bytes, answer_out, NULL);
}

en_status eni_ask(const eni_address *leader, const eni_token *token, eni_ask_kind kind, int64_t number,
                  int64_t deadline_ns, char why_out[ENI_REASON_MAX])
{
    const eni_message wish = {.type = ENI_CTL_WISH, .token = *token, .kind = kind, .amount = number};
    eni_address at = *leader;
    eni_message answer;
    eni_link link;
    int fd;
    why_out[0] = '\0';
    if (eni_address_is_anywhere(&at)) snprintf(at.host, sizeof at.host, "127.0.0.1");
    EN_TRY(eni_tcp_connect(&at, deadline_ns, -1, &fd));
    eni_link_init(&link, fd);
    en_status st = eni_message_put(&link, &wish);
    if (st == EN_OK) st = eni_tcp_send(fd, link.out.data, link.out.bytes, deadline_ns, -1);
    if (st == EN_OK) st = await_answer(&link, deadline_ns, &answer);
    eni_link_fini(&link);
    if (st != EN_OK)
        return eni_fail(st, "ask", "no answer from the run's leader at port %u: %s", leader->port,
                        en_status_str(st));
    if (answer.type == ENI_CTL_BYE) return EN_OK;
    if (answer.type != ENI_CTL_NOTICE && (answer.type != ENI_CTL_REFUSED || answer.status == EN_OK))
        return eni_fail(EN_EPROTO, "ask", "the run's leader sent an unexpected message (type %u)",
                        answer.type);
    memcpy(why_out, answer.reason, sizeof answer.reason);
    return answer.type == ENI_CTL_NOTICE ? EN_OK : (en_status)answer.status;
}
