/* A daemon with the CUDA backend, on the fake driver where $MLA_CUDA_DRIVER names it, and processes beside it. Nothing
 * here calls CUDA. */
#ifndef MLA_TESTS_GPU_DAEMON_H
#define MLA_TESTS_GPU_DAEMON_H

#include <stdbool.h>

#include "tests/support/daemon_fixture.h"
#include "tests/support/fake_cuda/fake_cuda.h"
#include "tests/support/worker.h"

/* ---- processes ---- */

struct peer {
    pid_t pid; /* in that process: 0 */
    int fd;    /* of this side */
};

/* Runs fn in a process of its own, with the other end; it ends with what fn returns. An assertion that fails there is
 * what the test reports, whichever process notices the end first: no signal comes of telling a process that is gone. */
void peer_start(struct peer *peer, int (*fn)(struct peer *parent, void *arg), void *arg);
/* A byte to the other side; waits for the next one, whatever it is; waits for this one (60 s). */
void peer_tell(struct peer *peer, char word);
char peer_next(struct peer *peer);
void peer_hear(struct peer *peer, char word);
/* Waits for the end; it must return 0. */
void peer_end(struct peer *peer);
void peer_kill(struct peer *peer);

/* ---- the daemon ---- */

bool gpu_is_fake(void);
/* Where the machine's MPS server serves this process: "shared", else "isolated". $MLA_TEST_ISOLATION says what must be.
 */
const char *gpu_isolation(void);

/* daemon_start() with the CUDA backend and 64 MiB of workspace; long jobs are not cut into launches. rules: of the fake
 * driver in the daemon, "" for none; ignored on a real one. */
void gpu_daemon_start(struct daemon *d, const char *rules);
/* The same with three more keys, "section.key=value". */
void gpu_daemon_start_with(struct daemon *d, const char *rules, const char *const sets[3]);
/* Another one behind the first, on the same socket. */
void gpu_daemon_start_again(struct daemon *d);
/* Replaces the rules. */
void gpu_daemon_rules(const char *rules);
/* A file that a "hold" rule may name: gone, then there. */
const char *gpu_gate(void);
void gpu_gate_open(void);
/* daemon_stop(), and forgets the files of the fake driver. On it, the daemon may have nothing left open. */
void gpu_daemon_stop(struct daemon *d, int exit_code);

/* Fake driver: what the daemon has open of others' memory ("" for nothing); real: always "". Static storage. */
const char *gpu_daemon_memory(const struct daemon *d);

/* Of the daemon's driver, which must be the fake one. */
struct mla_fake_report gpu_daemon_report(const struct daemon *d);

/* Reads over a connection of the caller's. */
uint64_t gpu_jobs_running(struct mla_client *client);
uint64_t gpu_clients(struct mla_client *client);

#endif
