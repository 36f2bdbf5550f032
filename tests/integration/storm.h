/* A peer that sends what it should not: seeded messages of every type, right, nearly right and wrong, of its own
 * objects and of others', whole, cut, bent, in pieces, with descriptors of every kind. It reads what comes back and
 * checks that each request is answered at most once and that no refusal names what is another peer's. */
#ifndef MLA_TESTS_INTEGRATION_STORM_H
#define MLA_TESTS_INTEGRATION_STORM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "proto/codec.h"
#include "tests/support/prng.h"

#define STORM_PEERS   8u
#define STORM_IDS     16u   /* remembered of each kind of object */
#define STORM_PENDING 4096u /* requests whose answers are waited for, by the low bits of their ids */
#define STORM_FDS     16u

enum storm_fd { /* kinds of descriptors */
                STORM_SEALED,
                STORM_SYNC,
                STORM_UNSEALED,
                STORM_SEALED_FOR_WRITING,
                STORM_READ_ONLY,
                STORM_FILE,
                STORM_NULL,
                STORM_PIPE,
                STORM_SOCKET,
                STORM_FOLDER,
                STORM_EPOLL,
                STORM_EVENT,
                STORM_PATH,
                STORM_FD_KINDS
};

struct storm_ids {
    uint64_t id[STORM_IDS];
    unsigned n;
};

struct storm_peer {
    struct storm *storm;
    int fd; /* -1: not connected */
    bool greeted;
    bool wild;      /* what it sent may have been read as something else: answers are not matched any more */
    char token[16]; /* in all names and labels of its own */
    unsigned built; /* right requests so far, with which a connection begins */
    bool plain;     /* the request being built is a right one */
    uint64_t last_id;
    uint16_t pending[STORM_PENDING]; /* type; 0: none */
    struct storm_ids regions, syncs, caches, attached;
    uint8_t *rest; /* of a frame that was sent in part */
    size_t rest_bytes;
    uint8_t *in;
    size_t in_bytes, in_cap;
};

struct storm {
    const char *socket;
    struct prng prng;
    struct storm_peer peers[STORM_PEERS];
    int fds[STORM_FD_KINDS];
    _Atomic uint64_t *words; /* of STORM_SYNC, which all peers register */
    uint8_t *frame, *arena;
    uint32_t *numbers; /* scratch of the message being built */
    struct mla_decode_request *layers;
    uint64_t frames, answers, refused, ended, bytes; /* so far */
};

void storm_open(struct storm *s, const char *socket, uint64_t seed);
/* One act of one of the peers. */
void storm_act(struct storm *s);
/* All peers go. */
void storm_hang_up(struct storm *s);
void storm_close(struct storm *s);

/* storm_build.c: the next of the requests that a connection begins with, or one of a random type. Returns how many
 * descriptors of fds go with it. */
#define STORM_BEGINNING 7u
size_t storm_build(struct storm_peer *p, struct mla_message *m, int fds[STORM_FDS]);

#endif
