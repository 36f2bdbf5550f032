/* Bytes and descriptors of a peer through the frame assembler. The input is a list of reads:
 *     u8 how many descriptors come with it (low 7 bits), cut off (0x80); u16 length, little-endian; bytes
 * What comes out must be the frames that stand in the bytes, however they were cut into reads; every descriptor must be
 * closed in the end; and memory must follow the bytes that came, not those that were announced. */
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include "daemon/net/frame_reader.h"
#include "tests/fuzz/fuzz.h"

#define STREAM_MAX (1u << 20)
#define FDS_MAX    512u

static uint8_t stream[STREAM_MAX]; /* all that was fed */
static size_t fed, taken;          /* bytes, and those of frames that came out */
static int handed[FDS_MAX];
static size_t n_handed;

static size_t make_fds(int *fds, size_t n)
{
    static int null = -1;
    if (null < 0)
        null = open("/dev/null", O_RDONLY | O_CLOEXEC);
    size_t made = 0;
    while (made < n && n_handed < FDS_MAX) {
        int fd = fcntl(null, F_DUPFD_CLOEXEC, 10);
        FUZZ_CHECK(fd >= 0);
        fds[made++] = handed[n_handed++] = fd;
    }
    return made;
}

static void check_frame(const struct frame_reader *r, const struct frame *f)
{
    struct mla_frame_header h;
    FUZZ_CHECK(fed - taken >= MLA_WIRE_HEADER_BYTES);
    FUZZ_CHECK(mla_wire_unpack(stream + taken, &h) == 0);
    FUZZ_CHECK(h.major == MLA_PROTO_MAJOR && h.major == f->header.major);
    FUZZ_CHECK(h.type == f->header.type && (h.type & 0xc000) == 0);
    FUZZ_CHECK(h.request_id == f->header.request_id && h.body_len == f->header.body_len);
    FUZZ_CHECK(h.n_fds == f->header.n_fds && h.n_fds <= MLA_MAX_FDS_PER_FRAME);
    FUZZ_CHECK(f->n_fds == (f->fds_missing ? 0u : h.n_fds));
    FUZZ_CHECK(r->greeted || h.type == MLA_MSG_HELLO);
    uint32_t cap = mla_wire_body_cap(h.type);
    FUZZ_CHECK(f->known == (cap != 0));
    FUZZ_CHECK(h.body_len <= (cap ? cap : MLA_CAP_CONTROL_BYTES));
    taken += MLA_WIRE_HEADER_BYTES;
    FUZZ_CHECK(fed - taken >= h.body_len);
    FUZZ_CHECK(memcmp(stream + taken, f->body, h.body_len) == 0);
    taken += h.body_len;
    for (size_t i = 0; i < f->n_fds; i++)
        FUZZ_CHECK(fcntl(f->fds[i], F_GETFD) >= 0);
    if (f->n_fds > 1) { /* a handler keeps one */
        close(f->fds[1]);
        f->fds[1] = -1;
    }
}

/* All frames that are there; false when the stream is broken. */
static int drain(struct frame_reader *r)
{
    for (;;) {
        struct frame f;
        struct mla_error err = {0};
        int has = frame_reader_has_frame(r);
        enum frame_result result = frame_reader_next(r, &f, &err);
        FUZZ_CHECK(has == (result != FRAME_NONE));
        if (result == FRAME_NONE) {
            FUZZ_CHECK(frame_reader_partial(r) == (taken < fed));
            return 1;
        }
        if (result == FRAME_BROKEN) {
            FUZZ_CHECK(err.code != MLA_OK && err.text[0] != '\0');
            FUZZ_CHECK(frame_reader_next(r, &f, &err) == FRAME_BROKEN);
            return 0;
        }
        check_frame(r, &f);
        r->greeted = true;
        frame_reader_release(r);
        FUZZ_CHECK(r->n_pending <= MLA_MAX_FDS_PENDING);
    }
}

/* One read, as much of it as there is space for at a time. */
static int feed(struct frame_reader *r, const uint8_t *bytes, size_t n, const int *fds, size_t n_fds, int lost)
{
    while (n > 0) {
        size_t room;
        uint8_t *p = frame_reader_space(r, &room);
        FUZZ_CHECK(p && room > 0);
        if (room > n)
            room = n;
        memcpy(p, bytes, room);
        memcpy(stream + fed, bytes, room);
        fed += room;
        frame_reader_feed(r, room, fds, n_fds, lost);
        n_fds = 0;
        lost = 0;
        FUZZ_CHECK(r->cap_bytes <= FRAME_BUFFER_BASE_BYTES || r->cap_bytes <= 2 * fed);
        bytes += room;
        n -= room;
        if (!drain(r))
            return 0;
    }
    return 1;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct frame_reader r;
    if (size > STREAM_MAX)
        return 0;
    frame_reader_init(&r);
    fed = taken = n_handed = 0;
    while (size > 3) {
        size_t n = data[1] | (size_t)data[2] << 8;
        uint8_t how = data[0];
        data += 3;
        size -= 3;
        if (n > size)
            n = size;
        if (n == 0)
            continue;
        int fds[128];
        size_t n_fds = make_fds(fds, how & 0x7f);
        if (!feed(&r, data, n, fds, n_fds, (how & 0x80) != 0))
            break;
        data += n;
        size -= n;
    }
    frame_reader_free(&r);
    for (size_t i = 0; i < n_handed; i++)
        FUZZ_CHECK(fcntl(handed[i], F_GETFD) < 0);
    return 0;
}
