/* The one list of status codes: in replies, in per-sequence faults, in notices and in the client's enum mla_status.
 *
 * Numbers are part of the protocol: never renumbered, never reused; new ones go at the end of their group.
 *   0        done
 *   1..99    the request was bad; sending it again unchanged gives the same answer
 *   100..199 the request was fine, the state was not (quota, overload, gone); it may succeed later
 *   200..299 the job ended without a usable result, or late
 *   300..399 the connection or the daemon is at fault
 *   400..499 faults of single sequences inside a job that otherwise succeeded
 *   500..599 of the client library only, never on the wire
 */
#ifndef MLA_PROTO_STATUS_H
#define MLA_PROTO_STATUS_H

/* X(NAME, number, meaning) */
#define MLA_STATUS_LIST(X)                                                                                             \
    X(OK, 0, "done")                                                                                                   \
    X(INVALID_ARGUMENT, 1, "a field is missing, malformed or out of range")                                            \
    X(NOT_FOUND, 2, "no such object on this connection")                                                               \
    X(ALREADY_EXISTS, 3, "the id or name is taken")                                                                    \
    X(UNSUPPORTED, 4, "known, but not offered by this daemon or backend")                                              \
    X(UNKNOWN_MESSAGE, 5, "message type not known")                                                                    \
    X(MALFORMED, 6, "the body does not parse")                                                                         \
    X(TOO_LARGE, 7, "over a limit of the protocol")                                                                    \
    X(MISALIGNED, 8, "an address, offset or stride is not a multiple of what it must be")                              \
    X(OUT_OF_BOUNDS, 9, "a byte range leaves its region, or an index its table")                                       \
    X(OVERLAP, 10, "an output meets an input or another output")                                                       \
    X(PERMISSION_DENIED, 11, "the peer's user or groups do not grant this")                                            \
    X(WRONG_DEVICE, 12, "the memory or request names a GPU that this daemon does not serve")                           \
    X(NO_DESCRIPTORS, 13, "file descriptors are missing, surplus or were truncated")                                   \
    X(BAD_DESCRIPTOR, 14, "the descriptor is not of a kind that can be mapped")                                        \
    X(NOT_SEALED, 15, "a memfd without F_SEAL_SHRINK")                                                                 \
    X(BAD_HANDLE, 16, "the handle cannot be opened here")                                                              \
    X(VERSION_MISMATCH, 17, "the protocol majors differ")                                                              \
    X(HELLO_REQUIRED, 18, "HELLO must be the first message, and only the first")                                       \
    X(ACCESS_DENIED, 19, "the region was not registered with the access that this use needs")                          \
    X(BUSY, 20, "the object is in use in a way that forbids this")                                                     \
    X(NON_FINITE, 21, "a scale is zero, infinite or not a number")                                                     \
    X(QUOTA, 100, "over a quota of this client")                                                                       \
    X(OVERLOADED, 101, "the queue is full; retry_after_us says when to try again")                                     \
    X(DRAINING, 102, "the daemon takes no new work")                                                                   \
    X(CACHE_GONE, 103, "the owner of the cache has gone or has dropped it")                                            \
    X(SUSPENDED, 104, "the region is suspended")                                                                       \
    X(OUT_OF_MEMORY, 105, "the daemon or the device has no memory for this")                                           \
    X(TIMED_OUT, 200, "the deadline passed before the job was launched")                                               \
    X(CANCELLED, 201, "cancelled; if it ran, its outputs are unspecified")                                             \
    X(LATE, 202, "the deadline passed while the job ran; its outputs are complete")                                    \
    X(READY_ABORTED, 203, "the ready word was set to an abort value")                                                  \
    X(PROTOCOL_ERROR, 300, "the peer broke the protocol; the connection ends")                                         \
    X(DISCONNECTED, 301, "the connection ended before the answer (client side only)")                                  \
    X(DEVICE_LOST, 302, "the device failed; the daemon restarts")                                                      \
    X(INTERNAL, 303, "a fault of the daemon")                                                                          \
    X(SLOW_PEER, 304, "the peer did not read or finish a frame within its limit; the connection ends")                 \
    X(PARTIAL, 400, "some sequences faulted; the reply lists them, all others are complete")                           \
    X(PAGE_OUT_OF_RANGE, 401, "a needed page id is outside the cache (index: the smallest bad table entry)")           \
    X(KV_LEN_OUT_OF_RANGE, 402, "the device-resident kv_len is above its host bound or negative")                      \
    X(VISIBLE_OUT_OF_RANGE, 403, "a visible count is above kv_len or negative (index: the query token)")               \
    X(PENDING, 500, "the time given to the call is over; the request is still in flight (client side only)")           \
    X(SYSTEM_ERROR, 501, "a call to the operating system failed (value: errno; client side only)")

enum mla_status {
#define MLA_STATUS_ENUM(name, number, text) MLA_##name = (number),
    MLA_STATUS_LIST(MLA_STATUS_ENUM)
#undef MLA_STATUS_ENUM
};

#endif
