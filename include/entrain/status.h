/* status.h - the status codes of all calls. One list keeps name, value and sentence together.
 *
 * Every fallible function of Entrain returns an en_status; 0 is success. The function that first detects an error logs the
 * exact cause once; its callers pass the status on unchanged. */
#ifndef ENTRAIN_STATUS_H
#define ENTRAIN_STATUS_H

#ifdef __cplusplus
extern "C" {
#endif

/* X(name, value, sentence). Values are part of the ABI: append, never renumber. */
#define EN_STATUS_MAP(X)                                                                                     \
    X(EN_OK, 0, "success")                                                                                   \
    X(EN_EINVAL, 1, "an argument or option is not valid")                                                    \
    X(EN_ENOMEM, 2, "out of memory")                                                                         \
    X(EN_EIO, 3, "a read or write failed")                                                                   \
    X(EN_ENOENT, 4, "no such file or name")                                                                  \
    X(EN_EFORMAT, 5, "a file is not in the format it should have")                                           \
    X(EN_EPROTO, 6, "a peer sent something that the protocol forbids")                                       \
    X(EN_EVERSION, 7, "two parts were built for different versions")                                         \
    X(EN_EDENIED, 8, "the job token or the user does not match")                                             \
    X(EN_ETIMEOUT, 9, "the deadline passed")                                                                 \
    X(EN_EPEER, 10, "a peer of this run died")                                                               \
    X(EN_EMEMBER, 11, "the membership changed: do the step again")                                           \
    X(EN_ESTOP, 12, "the sample budget is used up")                                                          \
    X(EN_EMISMATCH, 13, "two ranks disagree")                                                                \
    X(EN_EUNSUPPORTED, 14, "this device, host or build cannot do that")                                      \
    X(EN_EINTR, 15, "interrupted by the user")                                                               \
    X(EN_ENONFINITE, 16, "a value is not finite")                                                            \
    X(EN_EBUG, 17, "an internal invariant is broken")

enum {
#define EN_STATUS_ENUM(name, value, sentence) name = value,
    EN_STATUS_MAP(EN_STATUS_ENUM)
#undef EN_STATUS_ENUM
};

typedef int en_status;

/* The sentence for a status. Static storage; never NULL, even for unknown values. */
static inline const char *en_status_str(en_status status)
{
    switch (status) {
#define EN_STATUS_CASE(name, value, sentence)                                                                \
    case value: return sentence;
        EN_STATUS_MAP(EN_STATUS_CASE)
#undef EN_STATUS_CASE
    default: return "unknown status";
    }
}

#ifdef __cplusplus
}
#endif
#endif
