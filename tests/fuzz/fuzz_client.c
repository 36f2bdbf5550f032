/* What a daemon sends, through the client's core: the input is a list of acts (client_acts.h), among them frames that
 * answer requests in flight and frames that are anything. Whatever comes, every job is answered exactly once; when the
 * connection ends, the done word of each that was not has its abort value and those of the answered are left alone; and
 * memory stays within the caps. */
#include <string.h>

#include "client/template.h"
#include "client/watch.h"
#include "tests/fuzz/client_acts.h"
#include "tests/fuzz/fuzz.h"

#define REQUESTS  64u
#define VALUE     5u
#define SEND_MAX  (64u << 10)
#define ABORTED   (VALUE + MLA_ABORT_OFFSET)
#define N_LAYERS  2u
#define MAX_PIECE 4096u

enum kind { NOBODY, JOB, OTHER };

struct asked {
    enum kind kind;
    uint64_t id;
    bool callback, armed, answered, left, handed_out;
    uint64_t done;
    uint64_t status;
};

static struct mlac_core core;
static struct asked asked[REQUESTS];
static unsigned n_asked;
static uint64_t call_id; /* the one CALL in flight, 0: none */
static struct mla_template *tmpl;
static uint64_t layer_done[N_LAYERS];

static void decoded(struct mla_client *c, const struct mla_decode_result *r, void *user)
{
    (void)c, (void)r, (void)user;
}

static void stepped(struct mla_client *c, const struct mla_step_result *r, void *user)
{
    (void)c, (void)r, (void)user;
}

static void new_template(void)
{
    tmpl = calloc(1, sizeof(*tmpl) + N_LAYERS * sizeof(tmpl->words[0]));
    FUZZ_CHECK(tmpl);
    tmpl->n_layers = N_LAYERS;
    for (uint32_t i = 0; i < N_LAYERS; i++) {
        layer_done[i] = 0;
        tmpl->words[i] = (struct mlac_words){.done = &layer_done[i], .value = VALUE};
    }
    mlac_template_add(&core, tmpl);
}

static void ask(uint8_t which)
{
    size_t at = which % N_ASKS;
    uint16_t type = client_asks[at].type;
    enum mlac_role role = client_asks[at].role;
    if (core.ended || n_asked == REQUESTS || (role == MLAC_CALL && call_id))
        return;
    struct mlac_request *r = mlac_request_new(&core, type, role);
    FUZZ_CHECK(r && r->id);
    struct asked *a = &asked[n_asked++];
    *a = (struct asked){.kind = role == MLAC_JOB ? JOB : OTHER, .id = r->id};
    r->object = which;
    r->user = a;
    if (role == MLAC_CALL)
        call_id = r->id;
    if (role != MLAC_JOB)
        return;
    if (type == MLA_MSG_STEP) {
        r->step_callback = stepped;
        if (tmpl && !tmpl->broken && !mlac_template_in_flight(&core, tmpl)) {
            r->tmpl = tmpl;
            tmpl->request = r->id;
        }
    } else {
        if (at == 0)
            r->callback = decoded;
        a->armed = which & 0x80;
        if (a->armed)
            mlac_request_arm(&core, r, &a->done, VALUE, &a->status, 1);
    }
    a->callback = r->callback || r->step_callback;
}

/* What the step just taken made of the requests. */
static void look(bool ended_now)
{
    for (unsigned i = 0; i < n_asked; i++) {
        struct asked *a = &asked[i];
        if (a->kind != JOB || a->handed_out || a->answered)
            continue;
        const struct mlac_request *r = mlac_request_find(&core, a->id);
        bool waits = r && (r->state == MLAC_FLIGHT || r->state == MLAC_HELD);
        if (ended_now) {
            FUZZ_CHECK(!waits);
            FUZZ_CHECK(!a->armed || (a->done == ABORTED && a->status != 0));
            FUZZ_CHECK(a->left || (r && r->state == MLAC_ANSWERED));
        }
        if (!waits) {
            FUZZ_CHECK(a->left || (r && r->state == MLAC_ANSWERED));
            FUZZ_CHECK(ended_now || a->done == 0);
            a->answered = true;
        } else {
            FUZZ_CHECK(a->done == 0 && a->status == 0);
        }
    }
    if (ended_now && tmpl)
        for (uint32_t i = 0; i < N_LAYERS; i++)
            FUZZ_CHECK(layer_done[i] == ABORTED);
    FUZZ_CHECK(core.n_events <= MLAC_EVENTS_MAX);
    FUZZ_CHECK(core.in_cap <= MLA_WIRE_HEADER_BYTES + MLA_CAP_REPLY_BYTES);
    FUZZ_CHECK(core.arena.cap_bytes <= MLA_CAP_REPLY_BYTES + MLA_CODEC_SLACK_BYTES);
}

static void step_all(void)
{
    enum mlac_step step;
    do {
        bool before = core.ended;
        step = mlac_core_step(&core, call_id);
        if (step == MLAC_AWAITED) {
            FUZZ_CHECK(call_id && !mlac_request_find(&core, call_id));
            call_id = 0;
        }
        FUZZ_CHECK((step == MLAC_ENDED) == core.ended);
        look(core.ended && !before);
    } while (step == MLAC_FRAME || step == MLAC_AWAITED);
}

static void receive(const uint8_t *bytes, size_t n)
{
    while (n > 0 && !core.ended) {
        size_t room;
        uint8_t *in = mlac_core_in(&core, &room);
        FUZZ_CHECK(in && room > 0);
        size_t piece = n < room ? n : room;
        piece = piece < MAX_PIECE ? piece : MAX_PIECE;
        memcpy(in, bytes, piece);
        mlac_core_received(&core, piece);
        bytes += piece;
        n -= piece;
        step_all();
    }
}

static void receive_frame(uint16_t type, uint64_t id, const uint8_t *body, size_t n)
{
    uint8_t header[MLA_WIRE_HEADER_BYTES];
    mla_wire_pack(
        &(struct mla_frame_header){.major = MLA_PROTO_MAJOR, .type = type, .body_len = (uint32_t)n, .request_id = id},
        header);
    receive(header, sizeof(header));
    receive(body, n);
}

static void answer(uint8_t which, const uint8_t *body, size_t n)
{
    if (n_asked == 0)
        return;
    const struct mlac_request *r = mlac_request_find(&core, asked[which % n_asked].id);
    if (r)
        receive_frame(r->type | MLA_REPLY, r->id, body, n);
}

static void notice(uint8_t which, const uint8_t *body, size_t n)
{
    receive_frame(client_notices[which % N_NOTICES], 0, body, n);
}

static void take(void)
{
    struct mlac_ready *item;
    while ((item = mlac_core_take(&core))) {
        if (item->is_event) {
            mlac_event_free((struct mlac_event *)item);
            continue;
        }
        struct mlac_request *r = (struct mlac_request *)item;
        struct asked *a = r->user;
        FUZZ_CHECK(a->kind == JOB && a->callback && a->answered && !a->handed_out);
        FUZZ_CHECK((r->type == MLA_MSG_STEP ? r->step.request : r->result.request) == a->id);
        FUZZ_CHECK(r->type == MLA_MSG_STEP || r->result.n_listed <= MLA_FAULTS_MAX);
        a->handed_out = true;
        mlac_request_free(&core, r);
    }
}

/* As mla_wait does for a job without a callback, once it is answered. */
static void wait_for(struct asked *a)
{
    struct mlac_request *r = mlac_request_find(&core, a->id);
    if (a->kind != JOB || a->callback || a->left || a->handed_out || !r || r->state != MLAC_ANSWERED)
        return;
    FUZZ_CHECK(a->answered && r->result.request == a->id);
    a->handed_out = true;
    mlac_request_free(&core, r);
}

static void leave(struct asked *a)
{
    struct mlac_request *r = mlac_request_find(&core, a->id);
    if (!r || r->state != MLAC_FLIGHT || r->callback || r->step_callback || core.ended ||
        (r->role != MLAC_CALL && r->role != MLAC_JOB))
        return;
    a->left = true;
    if (r->id == call_id)
        call_id = 0;
    mlac_request_leave(&core, r);
}

static void send_some(size_t most)
{
    int fds[MLA_MAX_FDS_PER_FRAME];
    size_t n, n_fds;
    const uint8_t *out = mlac_core_out(&core, &n, fds, &n_fds);
    if (!out)
        return;
    FUZZ_CHECK(n > 0 && n_fds == 0 && !core.ended);
    mlac_core_sent(&core, most + 1 < n ? most + 1 : n);
}

static const uint8_t *act(const uint8_t *p, const uint8_t *end)
{
    enum act what = p[0] & 7;
    uint8_t which = p[1];
    p += 2;
    if (what == ANSWER || what == BYTES || what == NOTICE) {
        if (end - p < 2)
            return end;
        size_t n = p[0] | (size_t)p[1] << 8;
        p += 2;
        if (n > (size_t)(end - p))
            n = (size_t)(end - p);
        if (what == ANSWER)
            answer(which, p, n);
        else if (what == NOTICE)
            notice(which, p, n);
        else
            receive(p, n);
        return p + n;
    }
    if (what == ASK)
        ask(which);
    else if (what == TAKE)
        take();
    else if (what == SENT)
        send_some(which);
    else if (n_asked > 0 && what == LEAVE)
        leave(&asked[which % n_asked]);
    else if (n_asked > 0)
        wait_for(&asked[which % n_asked]);
    return p;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const uint8_t *p = data, *end = data + size;
    if (size < 1)
        return 0;
    n_asked = 0;
    call_id = 0;
    tmpl = NULL;
    FUZZ_CHECK(mlac_core_init(&core, SEND_MAX, data[0] & 1) == 0);
    if (data[0] & 2)
        new_template();
    p++;
    while (end - p >= 2)
        p = act(p, end);
    bool before = core.ended;
    mlac_core_end_with(&core, MLA_DISCONNECTED, "the input has ended");
    look(!before);
    FUZZ_CHECK(core.reason.code != MLA_OK);
    take();
    for (unsigned i = 0; i < n_asked; i++) {
        wait_for(&asked[i]);
        FUZZ_CHECK(asked[i].kind != JOB || asked[i].left || asked[i].handed_out);
    }
    FUZZ_CHECK(core.n_jobs == 0);
    if (tmpl) {
        mlac_template_remove(&core, tmpl);
        free(tmpl);
    }
    mlac_core_free(&core);
    return 0;
}
