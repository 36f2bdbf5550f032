/* A client that speaks frames: for what the library would never send, and for what it hides. Blocking, 10 s of
 * patience, Check's assertions. */
#ifndef MLA_TESTS_RAW_CLIENT_H
#define MLA_TESTS_RAW_CLIENT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "proto/codec.h"

struct raw {
    int fd;
    uint64_t last_id;               /* of requests; raw_call() counts it up */
    struct mla_frame_header header; /* of the frame received last */
    struct mla_message message;     /* its body; lives until the next one */
    struct mla_error hello_status;  /* of raw_open() */
    struct mla_message notice;      /* CACHE_GONE or GOAWAY that came while a reply was waited for; type 0: none */
    unsigned notices;
    uint8_t *memory;
};

/* Connected, nothing sent. */
void raw_connect(struct raw *r, const char *socket);
/* Connected and greeted. */
void raw_open(struct raw *r, const char *socket);
void raw_close(struct raw *r);

/* Bytes as they are, with descriptors; false when the other side has closed. */
bool raw_bytes(const struct raw *r, const void *bytes, size_t n, const int *fds, size_t n_fds);
/* The frame of a message; n_fds in its header is that of fds. */
void raw_send(const struct raw *r, const struct mla_message *message, uint64_t request_id, const int *fds,
              size_t n_fds);
/* The next frame, decoded. False: the connection has ended. */
bool raw_receive(struct raw *r);
/* Waits up to ms for a frame to begin or for the end: true when there is one. */
bool raw_readable(const struct raw *r, unsigned ms);

/* Sends and waits for its reply (notices that come before it are counted and kept). */
const struct mla_message *raw_call(struct raw *r, const struct mla_message *message);
const struct mla_message *raw_call_fds(struct raw *r, const struct mla_message *message, const int *fds, size_t n_fds);

/* The reply to this request id, whichever else come before it. */
const struct mla_message *raw_wait(struct raw *r, uint64_t request_id);

/* raw_call() that must be answered like this; field NULL: no field. Returns the status. */
const struct mla_error *raw_expect(struct raw *r, const struct mla_message *message, enum mla_status code,
                                   const char *field);

/* One sample of METRICS by name and labels ("" when it has none); fails the test when there is no such series. */
double raw_metric(struct raw *r, const char *name, const char *labels);

/* ---- objects made in one line; id 0 never comes back ---- */

/* A memfd of this size, sealed against shrinking and growing, mapped at *addr when that is not NULL. */
int raw_memfd(uint64_t bytes, void **addr);
uint64_t raw_region(struct raw *r, int fd, uint64_t bytes, enum mla_access access);
uint64_t raw_sync(struct raw *r, uint64_t **words); /* one page of 64 words */
uint64_t raw_cache(struct raw *r, uint64_t region, uint64_t num_pages);
void raw_tables(struct raw *r, uint64_t id, uint32_t q_len, uint32_t kv_len); /* one sequence, pages 0, 1, 2, ... */

#endif
