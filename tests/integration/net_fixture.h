/* The network side in this process: a loop, a net on a socket in a fresh folder, handlers that answer and remember, and
 * clients of plain sockets. One thread: whoever waits for something turns the loop meanwhile. */
#ifndef MLA_TESTS_INTEGRATION_NET_FIXTURE_H
#define MLA_TESTS_INTEGRATION_NET_FIXTURE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>
#include <sys/un.h>
#include <uv.h>

#include "daemon/net/net.h"
#include "proto/codec.h"
#include "tests/support/check_main.h"

#define NET_SEEN_MAX 4096

struct net_seen { /* a message that reached the handler */
    struct net_peer *peer;
    uint16_t type;
    uint64_t request_id;
    size_t n_fds;
    ino_t inode[MLA_MAX_FDS_PER_FRAME];
};

struct net_fixture {
    uv_loop_t loop;
    struct net *net;
    struct net_config config;
    char dir[64];
    char path[96];
    bool refuse_hello;
    unsigned copies; /* replies sent per request; 1 at first, 0: none */
    bool fail_next;  /* answer the next request with net_fail */
    bool close_next; /* call net_close in the next request */
    struct net_seen seen[NET_SEEN_MAX];
    size_t n_seen;
    unsigned hellos, closed, done;
};

extern struct net_fixture fx; /* one per (forked) test */

/* Makes the folder and fills config with limits for tests: 64 peers, 64 KiB of queue, 10 s of patience. */
void fx_prepare(void);
void fx_open(void);  /* fx_prepare, net_open */
void fx_start(void); /* net_open with fx.config as it is */
void fx_close(void); /* net_close, until done; checks that closed was called as often as hello; removes the folder */

/* The address of fx.path. */
struct sockaddr_un fx_address(void);

void fx_turn(void);            /* one turn of the loop, without waiting */
void fx_turn_for(unsigned ms); /* turns for that long */

/* ---- clients ---- */

int client_socket(void); /* connected, before HELLO; the loop has not turned */
int client_open(void);   /* connected, HELLO sent and answered with OK */
void client_write(int fd, const void *bytes, size_t n);
void client_send_fds(int fd, const void *bytes, size_t n, const int *fds, size_t n_fds);

/* A frame of any kind; out holds 24 + n bytes. Returns its length. */
size_t client_frame(uint8_t *out, uint16_t type, uint64_t request_id, uint8_t n_fds, const void *body, size_t n);
/* The frame of a message. Returns its length. */
size_t client_message(uint8_t *out, size_t cap, const struct mla_message *message, uint64_t request_id, uint8_t n_fds);
/* An empty request, as HEALTH and METRICS are. */
void client_request(int fd, uint16_t type, uint64_t request_id);

struct client_reply {
    struct mla_frame_header header;
    struct mla_message message;
    uint8_t body[8192];
    uint8_t arena[MLA_CODEC_SLACK_BYTES + 8192];
};

/* Waits for the next frame while the loop turns; 1 with *out filled, 0 when the daemon closed, fails the test after
 * 10 s. */
int client_receive(int fd, struct client_reply *out);
/* Waits for a frame of this type and code; returns it (static storage). */
const struct client_reply *client_expect(int fd, uint16_t type, uint64_t request_id, enum mla_status code);
void client_expect_end(int fd);

#endif
