/* A daemon for the client's tests: listens on a socket in a directory of its own, one thread per connection, answers
 * every request with plausible values unless the test's handler does so itself.
 *
 * Handlers run in the connection's thread. All functions may be called from any thread. */
#ifndef MLA_TESTS_CLIENT_SERVER_H
#define MLA_TESTS_CLIENT_SERVER_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "proto/codec.h"

#include <mla/mla.h>

#define FAKE_HELD_MAX 2048

struct fake;

struct fake_conn {
    struct fake *f;
    struct fake_conn *next;
    int fd;
    pthread_t thread;
    pthread_mutex_t write_lock;
    uint8_t *in;
    size_t in_len;
};

/* True: the handler has dealt with it (answered, or not). False: it gets the plausible answer. */
typedef bool (*fake_handler)(struct fake_conn *conn, const struct mla_message *request, uint64_t id, void *user);

struct fake_held {
    struct fake_conn *conn;
    uint64_t id;
    uint16_t type;
};

struct fake {
    char dir[64];
    char path[96];
    int listener;
    pthread_t acceptor;
    fake_handler handler;
    void *user;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    /* under lock */
    struct fake_conn *conns; /* newest first */
    uint64_t next_object;
    unsigned n_seen[0x60]; /* requests by type */
    uint64_t last_object;  /* named by the last UNREGISTER, DROP, DETACH or CANCEL */
    struct fake_held held[FAKE_HELD_MAX];
    size_t n_held;
    unsigned n_fds; /* descriptors received */
};

/* handler may be NULL. Never fails (aborts the test). */
struct fake *fake_start(fake_handler handler, void *user);
/* Hangs up on everybody, joins, removes the directory. */
void fake_stop(struct fake *f);

/* Options for a client of it. */
struct mla_options fake_options(const struct fake *f);
/* An open client; aborts the test when it fails. */
struct mla_client *fake_open(const struct fake *f);

/* The frame of msg, as an answer to id or a notice (id 0). Answers with an error status are made by fake_refuse. */
void fake_send(struct fake_conn *conn, const struct mla_message *msg, uint64_t id);
void fake_refuse(struct fake_conn *conn, uint16_t request_type, uint64_t id, const struct mla_error *err);
void fake_bytes(struct fake_conn *conn, const void *bytes, size_t n);
void fake_answer(struct fake_conn *conn, const struct mla_message *request, uint64_t id);
void fake_hang_up(struct fake_conn *conn);

/* The only or newest connection. */
struct fake_conn *fake_conn_of(struct fake *f);

/* Remembers a request instead of answering it: for handlers, which then return true. */
void fake_hold(struct fake_conn *conn, const struct mla_message *request, uint64_t id);
/* Answers DECODEs that are held: with OK and batch = position in held. */
void fake_answer_held(struct fake *f, size_t index);
/* Waits until n requests of the type have been seen, or held; aborts the test after 10 s. */
void fake_await_seen(struct fake *f, uint16_t type, unsigned n);
void fake_await_held(struct fake *f, size_t n);

/* Handlers that hold one kind. */
bool fake_hold_decodes(struct fake_conn *conn, const struct mla_message *request, uint64_t id, void *user);

/* Descriptors of this process. */
unsigned fake_open_fds(void);

#endif
