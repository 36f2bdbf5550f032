/* Writes seeds for fuzz_codec, fuzz_frame and fuzz_client: the full and the minimal message of every type. */
#include <errno.h>
#include <string.h>

#include "tests/fuzz/client_acts.h"
#include "tests/fuzz/fuzz.h"
#include "tests/support/messages.h"

static int write_file(const char *folder, const char *target, uint16_t type, const char *kind, const uint8_t *bytes,
                      size_t n)
{
    char path[4096];
    snprintf(path, sizeof(path), "%s/%s/%04x-%s", folder, target, type, kind);
    FILE *f = fopen(path, "wb");
    if (!f || fwrite(bytes, 1, n, f) != n || fclose(f) != 0) {
        fprintf(stderr, "%s: %s\n", path, strerror(errno));
        return 1;
    }
    return 0;
}

/* A client that asks for all there is, has message m for what it answers, or as a notice, and takes what came of it. */
static int write_client(const char *folder, const struct mla_message *m, const char *kind, const uint8_t *body,
                        size_t n)
{
    static uint8_t bytes[1u << 17];
    size_t used = 0;
    bytes[used++] = 3;
    for (size_t i = 0; i < N_ASKS; i++) {
        bytes[used++] = ASK;
        bytes[used++] = (uint8_t)(i | (i % 2 ? 0x80 : 0));
    }
    unsigned frames = 0;
    for (size_t i = 0; i < N_ASKS + N_NOTICES; i++) {
        bool is_notice = i >= N_ASKS;
        size_t which = is_notice ? i - N_ASKS : i;
        if (m->type != (is_notice ? client_notices[which] : (client_asks[which].type | MLA_REPLY)))
            continue;
        bytes[used++] = is_notice ? NOTICE : ANSWER;
        bytes[used++] = (uint8_t)which;
        bytes[used++] = (uint8_t)n;
        bytes[used++] = (uint8_t)(n >> 8);
        memcpy(bytes + used, body, n);
        used += n;
        frames++;
    }
    static const uint8_t rest[] = {SENT, 255, WAIT, 2, TAKE, 0, LEAVE, 11};
    memcpy(bytes + used, rest, sizeof(rest));
    return frames > 0 ? write_file(folder, "fuzz_client", m->type, kind, bytes, used + sizeof(rest)) : 0;
}

int main(int argc, char **argv)
{
    static uint8_t bytes[1u << 16];
    if (argc != 2) {
        fprintf(stderr, "usage: %s CORPUS-FOLDER\n", argv[0]);
        return 2;
    }
    int failed = 0;
    for (size_t i = 0; i < mla_n_all_types; i++) {
        for (int full = 0; full < 2; full++) {
            struct mla_message m;
            size_t n;
            const char *kind = full ? "full" : "minimal";
            (full ? mla_sample_full : mla_sample_minimal)(mla_all_types[i], &m);
            if (mla_codec_encode(&m, bytes + MLA_WIRE_HEADER_BYTES, sizeof(bytes) - MLA_WIRE_HEADER_BYTES, &n))
                return 1;
            struct mla_frame_header h = {.major = MLA_PROTO_MAJOR,
                                         .n_fds = (uint8_t)mla_codec_expected_fds(&m),
                                         .type = m.type,
                                         .body_len = (uint32_t)n,
                                         .request_id = i};
            mla_wire_pack(&h, bytes);
            if (full)
                failed |= write_file(argv[1], "fuzz_frame", m.type, kind, bytes, MLA_WIRE_HEADER_BYTES + n);
            uint8_t *typed = bytes + MLA_WIRE_HEADER_BYTES - 2;
            typed[0] = (uint8_t)m.type;
            typed[1] = (uint8_t)(m.type >> 8);
            failed |= write_file(argv[1], "fuzz_codec", m.type, kind, typed, n + 2);
            failed |= write_client(argv[1], &m, kind, bytes + MLA_WIRE_HEADER_BYTES, n);
        }
    }
    return failed;
}
