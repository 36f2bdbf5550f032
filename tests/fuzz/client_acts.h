/* The input of fuzz_client: one byte of flags (1: notices are wanted, 2: a template is open), then acts:
 *     u8 act, u8 which; of ANSWER, BYTES and NOTICE also u16 length, little-endian, and that many bytes
 * ASK makes a request, client_asks[which modulo their number]; bit 7 of which gives a DECODE a done word. ANSWER is a
 * frame with that body which answers request which (modulo those asked so far), BYTES are received as they stand,
 * NOTICE is a frame of notice number which. TAKE takes what is ready, LEAVE gives request which up, SENT sends at most
 * which + 1 bytes, WAIT takes the answer of a job without a callback. */
#ifndef MLA_TESTS_CLIENT_ACTS_H
#define MLA_TESTS_CLIENT_ACTS_H

#include "client/core.h"

enum act { ASK, ANSWER, BYTES, NOTICE, TAKE, LEAVE, SENT, WAIT };

static const struct {
    uint16_t type;
    enum mlac_role role;
} client_asks[] = {
    {MLA_MSG_DECODE, MLAC_JOB},
    {MLA_MSG_STEP, MLAC_JOB},
    {MLA_MSG_DECODE, MLAC_JOB}, /* without a callback */
    {MLA_MSG_PUT_TABLE_SET, MLAC_QUIET},
    {MLA_MSG_REGISTER_REGION, MLAC_LEFT},
    {MLA_MSG_REGISTER_SYNC, MLAC_LEFT},
    {MLA_MSG_DEFINE_CACHE, MLAC_LEFT},
    {MLA_MSG_ATTACH_CACHE, MLAC_LEFT},
    {MLA_MSG_TEMPLATE_OPEN, MLAC_LEFT},
    {MLA_MSG_UNREGISTER_REGION, MLAC_CLOSING},
    {MLA_MSG_SUSPEND, MLAC_CLOSING},
    {MLA_MSG_HEALTH, MLAC_CALL},
    {MLA_MSG_METRICS, MLAC_CALL},
    {MLA_MSG_STATUS, MLAC_CALL},
    {MLA_MSG_HELLO, MLAC_CALL},
    {MLA_MSG_RESUME, MLAC_CALL},
};
#define N_ASKS (sizeof(client_asks) / sizeof(client_asks[0]))

static const uint16_t client_notices[] = {MLA_NOTICE_ERROR, MLA_NOTICE_GOAWAY, MLA_NOTICE_CACHE_GONE};
#define N_NOTICES (sizeof(client_notices) / sizeof(client_notices[0]))

#endif
