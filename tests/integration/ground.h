/* A raw client with everything that a DECODE can name, and a DECODE that is right: what tests of refusals start from
 * and change one thing of. */
#ifndef MLA_TESTS_INTEGRATION_GROUND_H
#define MLA_TESTS_INTEGRATION_GROUND_H

#include "tests/support/raw_client.h"

#define GROUND_HEADS    4u
#define GROUND_Q_LEN    2u /* one sequence */
#define GROUND_KV_LEN   200u
#define GROUND_PAGES    4u
#define GROUND_TABLES   1u /* with pages 0..3 */
#define GROUND_DEVICE   2u /* the same shape, tables in a region */
#define GROUND_IO_BYTES (1u << 20)

/* Offsets in the read-write region. */
enum {
    GROUND_Q = 0,
    GROUND_ROPE = 16384,
    GROUND_O = 32768, /* f32: 8 rows of 2048 bytes */
    GROUND_LSE = 65536,
    GROUND_KV_LENS = 69632,
    GROUND_VISIBLE = 73728,
    GROUND_TABLE = 77824,
    GROUND_STATUS = 81920
};

struct ground {
    struct raw r;
    uint8_t *kv; /* GROUND_PAGES pages, all ones */
    uint8_t *io;
    uint64_t *words;    /* word i at words[8 * i], offset 64 * i */
    uint64_t kv_region; /* READ */
    uint64_t io_region; /* READ_WRITE */
    uint64_t sync;
    uint64_t cache; /* two planes on the same pages */
};

void ground_open(struct ground *g, const char *socket);
void ground_close(struct ground *g);

/* q, o and lse, CAUSAL, f32, host tables. */
void ground_decode(const struct ground *g, struct mla_message *m);
struct mla_ref ground_ref(uint64_t region, uint64_t offset);

/* Sends it and checks that it is decoded right: O is 1, LSE the logarithm of the keys seen. */
void ground_decodes(struct ground *g);

#endif
