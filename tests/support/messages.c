#include "tests/support/messages.h"

#include <string.h>

#include "proto/codec_table.h"

const uint16_t mla_all_types[] = {
#define TYPES(name, number, body, cap) (number), (number) | MLA_REPLY,
    MLA_REQUEST_LIST(TYPES)
#undef TYPES
#define TYPES(name, number, body, cap) (number),
        MLA_NOTICE_LIST(TYPES)
#undef TYPES
};
const size_t mla_n_all_types = sizeof(mla_all_types) / sizeof(mla_all_types[0]);

#define N(array)        (sizeof(array) / sizeof((array)[0]))
#define ARRAY(x, array) .x = (array), .n_##x = N(array)

static const uint8_t ipc[MLA_CUDA_IPC_BYTES] = {0, 1, 2, 0xff, 0x80};
static const struct mla_region_part parts[] = {{.offset = 4096, .size = 2 << 20, .allocation_size = 4 << 20},
                                               {.offset = 0, .size = 1}};
static const uint64_t planes[] = {0, 16, 1ull << 40};
static const uint32_t gids[] = {0, 1000, UINT32_MAX};
static const uint32_t q_len[] = {8, 0, 1};
static const uint32_t kv_len[] = {65, 0, 64};
static const uint32_t pages[] = {3, 0xffffffff, 7};
static const uint32_t visible[] = {0, 1, 0x80000000};
static const struct mla_sequence_fault faults[] = {{.sequence = 0, .code = MLA_PAGE_OUT_OF_RANGE, .index = 7},
                                                   {.sequence = 9, .code = MLA_VISIBLE_OUT_OF_RANGE}};
static const struct mla_sequence_fault step_faults[] = {
    {.sequence = 3, .code = MLA_KV_LEN_OUT_OF_RANGE, .index = 0, .layer = 60}};
static const struct mla_sample samples[] = {{.suffix = "", .labels = "outcome=\"ok\"", .value = 1.5},
                                            {.suffix = "_bucket", .labels = "", .value = -0.0}};
static const struct mla_metric metrics[] = {
    {.name = "mlad_jobs_total", .help = "jobs", .type = MLA_METRIC_COUNTER, ARRAY(samples, samples)},
    {.name = "mlad_empty", .help = "", .type = MLA_METRIC_GAUGE}};
static const struct mla_client_status clients[] = {{.client_id = 1,
                                                    .name = "worker",
                                                    .pid = 2,
                                                    .uid = 3,
                                                    .connected_us = 4,
                                                    .regions = 5,
                                                    .mapped_bytes = 6,
                                                    .caches = 7,
                                                    .table_sets = 8,
                                                    .jobs_in_flight = 9,
                                                    .jobs_answered = 10,
                                                    .weight = 11},
                                                   {.name = ""}};
static const struct mla_cache_status caches[] = {{.name = "main",
                                                  .owner_uid = 1,
                                                  .owner = 2,
                                                  .num_pages = 3,
                                                  .planes = 4,
                                                  .tokens_per_entry = 64,
                                                  .attachments = 5,
                                                  .label = "caf\xc3\xa9"}};
static const struct mla_timing timing = {.present = true, .wait_us = 1, .queue_us = 300, .run_us = 1ull << 40};

static struct mla_ref ref(uint64_t region, uint64_t offset)
{
    return (struct mla_ref){.present = true, .region = region, .offset = offset};
}

static struct mla_tensor tensor(uint64_t region, bool compact)
{
    return (struct mla_tensor){.present = true,
                               .region = region,
                               .offset = 1ull << 33,
                               .seq_stride = compact ? 0 : -(1ll << 40),
                               .token_stride = 96 * 576,
                               .head_stride = -576,
                               .compact = compact};
}

static void decode_minimal(struct mla_decode_request *d)
{
    d->cache = 1;
    d->table_set = 2;
    d->heads = 128;
    d->q = tensor(3, true);
    d->o = tensor(4, true);
    d->out_type = MLA_DTYPE_F32;
    d->softmax_scale = 0.125f;
}

static void decode_full(struct mla_decode_request *d)
{
    *d = (struct mla_decode_request){.cache = UINT64_MAX,
                                     .plane = 60,
                                     .table_set = 2,
                                     .heads = 96,
                                     .q = tensor(3, false),
                                     .q_rope = tensor(4, true),
                                     .o = tensor(5, false),
                                     .lse = tensor(6, false),
                                     .out_type = MLA_DTYPE_BF16,
                                     .mask = MLA_MASK_VISIBLE,
                                     ARRAY(visible, visible),
                                     .kv_len_ref = ref(8, 4),
                                     .table_ref = ref(9, 8),
                                     .table_entries_per_seq = 2048,
                                     .q_scale = 2.0f,
                                     .kv_scale = 0.5f,
                                     .softmax_scale = 1.0f / 24,
                                     .out_scale = -3.0f,
                                     .batch_invariant = true,
                                     .timeout_us = 1000000,
                                     .ready = ref(10, 64),
                                     .ready_value = UINT64_MAX,
                                     .done = ref(10, 128),
                                     .done_value = 0,
                                     .status_ref = ref(10, 8),
                                     .priority = 3};
    d->lse.offset = 4;
}

static void template_layers(struct mla_template_open_request *t)
{
    static struct mla_decode_request layers[2];
    struct mla_message base;
    decode_full(&layers[0]);
    mla_message_init(&base, MLA_MSG_DECODE);
    layers[1] = base.decode;
    decode_minimal(&layers[1]);
    layers[1].ready = ref(1, 0);
    layers[1].done = ref(1, 64);
    t->id = 5;
    t->layers = layers;
    t->n_layers = N(layers);
}

static void status_full(struct mla_error *e)
{
    *e = (struct mla_error){.code = MLA_OVERLOADED,
                            .field = "q.offset",
                            .index = 1,
                            .value = UINT64_MAX,
                            .limit = 2,
                            .retry_after_us = 3,
                            .text = "the queue is full"};
}

static void reply_full(struct mla_message *m)
{
    status_full(&m->reply.status);
    switch (m->type & ~MLA_REPLY) {
    case MLA_MSG_HELLO:
        m->hello_reply.major = 1;
        m->hello_reply.minor = 2;
        m->hello_reply.features = 0x3ff;
        m->hello_reply.boot_nonce = 0x0123456789abcdef;
        m->hello_reply.gpu_uuid = "CPU-0";
        m->hello_reply.backend = "cpu";
        m->hello_reply.version = "0.1.0";
        m->hello_reply.client_id = 7;
        m->hello_reply.limits = (struct mla_limits){true, 1, 2, 3, 4, 5, 6, 7};
        m->hello_reply.isolation = "host";
        break;
    case MLA_MSG_REGISTER_REGION:
        m->register_region_reply.region = 1;
        break;
    case MLA_MSG_REGISTER_SYNC:
        m->register_sync_reply.region = 1;
        break;
    case MLA_MSG_DEFINE_CACHE:
        m->define_cache_reply.cache = 1;
        break;
    case MLA_MSG_ATTACH_CACHE:
        m->attach_cache_reply.cache = 1;
        m->attach_cache_reply.num_pages = 1ull << 40;
        m->attach_cache_reply.planes = 61;
        m->attach_cache_reply.tokens_per_entry = 128;
        m->attach_cache_reply.layout = MLA_CACHE_E4M3_576;
        m->attach_cache_reply.tag = UINT64_MAX;
        break;
    case MLA_MSG_DECODE:
        m->decode_reply.faults = faults;
        m->decode_reply.n_faults = N(faults);
        m->decode_reply.timing = timing;
        m->decode_reply.batch = 1;
        m->decode_reply.batch_jobs = 2;
        m->decode_reply.tiles = 3;
        m->decode_reply.items = 4;
        m->decode_reply.splits = 5;
        break;
    case MLA_MSG_STEP:
        m->step_reply.timing = timing;
        m->step_reply.layers_done = 61;
        m->step_reply.layers_shared = 7;
        m->step_reply.faults = step_faults;
        m->step_reply.n_faults = N(step_faults);
        break;
    case MLA_MSG_HEALTH:
        m->health_reply.state = MLA_HEALTH_DEGRADED;
        m->health_reply.reason = "slow";
        m->health_reply.uptime_us = 1;
        m->health_reply.version = "0.1.0";
        m->health_reply.backend = "cpu";
        m->health_reply.gpu_uuid = "CPU-0";
        m->health_reply.isolation = "host";
        break;
    case MLA_MSG_METRICS:
        m->metrics_reply.metrics = metrics;
        m->metrics_reply.n_metrics = N(metrics);
        break;
    case MLA_MSG_STATUS:
        m->status_reply.daemon = (struct mla_daemon_status){
            true, "0.1.0", "cpu", "CPU-0", "a device", 1, MLA_HEALTH_READY, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14};
        m->status_reply.clients = clients;
        m->status_reply.n_clients = N(clients);
        m->status_reply.caches = caches;
        m->status_reply.n_caches = N(caches);
        break;
    case MLA_MSG_DRAIN:
        m->drain_reply.jobs_in_flight = 1;
        break;
    default: /* nothing but the status */
        break;
    }
}

void mla_sample_full(uint16_t type, struct mla_message *m)
{
    mla_message_init(m, type);
    if (type & MLA_REPLY) {
        reply_full(m);
        return;
    }
    mla_sample_minimal(type, m);
    switch (type) {
    case MLA_MSG_HELLO:
        m->hello = (struct mla_hello_request){
            .minor = 1, .features = 3, .client_name = "w", .pid_hint = 4, .gpu_uuid = "CPU-0"};
        break;
    case MLA_MSG_REGISTER_REGION:
        m->register_region = (struct mla_register_region_request){.kind = MLA_REGION_CUDA_VMM,
                                                                  .access = MLA_ACCESS_READ,
                                                                  .size = 1ull << 34,
                                                                  .offset = 4096,
                                                                  .gpu_uuid = "GPU-1",
                                                                  ARRAY(parts, parts),
                                                                  .has_continues = true,
                                                                  .more = true,
                                                                  .label = "kv \xe2\x82\xac"};
        break;
    case MLA_MSG_RESUME:
        m->resume = (struct mla_resume_request){.region = 1, .offset = 16, ARRAY(cuda_ipc, ipc), .block_size = 99};
        break;
    case MLA_MSG_DEFINE_CACHE:
        m->define_cache = (struct mla_define_cache_request){.layout = MLA_CACHE_E4M3_576,
                                                            .region = 1,
                                                            .offset = 16,
                                                            ARRAY(plane_offset, planes),
                                                            .num_pages = 10,
                                                            .page_stride = 64 * 592,
                                                            .row_stride = 592,
                                                            .tokens_per_page = 64,
                                                            .tokens_per_entry = 128,
                                                            .label = "kv"};
        break;
    case MLA_MSG_PUBLISH_CACHE:
        m->publish_cache =
            (struct mla_publish_cache_request){.cache = 1, .name = "Main_1.-", ARRAY(gids, gids), .tag = 7};
        break;
    case MLA_MSG_ATTACH_CACHE:
        m->attach_cache =
            (struct mla_attach_cache_request){.has_owner_uid = true, .owner_uid = 0, .name = "main", .wait_us = 5};
        break;
    case MLA_MSG_PUT_TABLE_SET:
        m->put_table_set = (struct mla_put_table_set_request){.id = 0,
                                                              ARRAY(q_len, q_len),
                                                              ARRAY(kv_len_max, kv_len),
                                                              ARRAY(pages, pages),
                                                              .entries_per_seq = 1,
                                                              .tokens_per_entry = 128};
        break;
    case MLA_MSG_DECODE:
        decode_full(&m->decode);
        break;
    case MLA_MSG_STEP:
        m->step = (struct mla_step_request){.template_id = 1, .has_table_set = true, .table_set = 0, .timeout_us = 2};
        break;
    case MLA_MSG_STATUS:
        m->status.what = MLA_STATUS_CACHES;
        m->status.client_id = 7;
        break;
    case MLA_MSG_DRAIN:
        m->drain = (struct mla_drain_request){.has_deadline_us = true, .deadline_us = 0};
        break;
    case MLA_NOTICE_ERROR:
        status_full(&m->error_notice.status);
        break;
    case MLA_NOTICE_GOAWAY:
        m->goaway_notice.reason = MLA_GOAWAY_DRAINING;
        m->goaway_notice.deadline_us = 9;
        status_full(&m->goaway_notice.status);
        break;
    case MLA_NOTICE_CACHE_GONE:
        m->cache_gone_notice.name = "main";
        break;
    default: /* the minimal one has all fields */
        break;
    }
}

void mla_sample_minimal(uint16_t type, struct mla_message *m)
{
    mla_message_init(m, type);
    switch (type) {
    case MLA_MSG_REGISTER_REGION:
        m->register_region.kind = MLA_REGION_MEMFD;
        m->register_region.access = MLA_ACCESS_READ_WRITE;
        m->register_region.size = 1;
        break;
    case MLA_MSG_UNREGISTER_REGION:
        m->unregister_region.region = 1;
        break;
    case MLA_MSG_SUSPEND:
        m->suspend.region = 1;
        break;
    case MLA_MSG_RESUME:
        m->resume.region = 1;
        break;
    case MLA_MSG_REGISTER_SYNC:
        m->register_sync.size = 4096;
        break;
    case MLA_MSG_DEFINE_CACHE:
        m->define_cache.layout = MLA_CACHE_E4M3_576;
        m->define_cache.region = 1;
        m->define_cache.num_pages = 1;
        m->define_cache.page_stride = 64 * 576;
        break;
    case MLA_MSG_PUBLISH_CACHE:
        m->publish_cache.name = "n";
        break;
    case MLA_MSG_ATTACH_CACHE:
        m->attach_cache.name = "n";
        break;
    case MLA_MSG_DECODE:
        decode_minimal(&m->decode);
        break;
    case MLA_MSG_TEMPLATE_OPEN:
        template_layers(&m->template_open);
        break;
    case MLA_NOTICE_GOAWAY:
        m->goaway_notice.reason = MLA_GOAWAY_FATAL;
        break;
    default: /* ids may be 0 */
        break;
    }
}

/* ---- comparison, by the codec's tables ---- */

static bool text_equal(const char *a, const char *b)
{
    return strcmp(a ? a : "", b ? b : "") == 0;
}

struct pair {
    const struct mla_body *body;
    const uint8_t *a, *b;
    unsigned i;     /* next field */
    size_t element; /* of it, when it is repeated */
};

static void get_array(const struct mla_field *f, const uint8_t *plain, const uint8_t **x, size_t *n)
{
    memcpy(x, plain + f->offset, sizeof(*x));
    memcpy(n, plain + f->aux, sizeof(*n));
}

static bool plain_equal(const struct pair *p)
{
    const struct mla_field *f = &p->body->fields[p->i];
    const ProtobufCFieldDescriptor *d = &p->body->schema->fields[p->i];
    const uint8_t *xa = p->a + f->offset, *xb = p->b + f->offset;
    if (d->label == PROTOBUF_C_LABEL_REPEATED || d->type == PROTOBUF_C_TYPE_BYTES) {
        size_t na, nb;
        get_array(f, p->a, &xa, &na);
        get_array(f, p->b, &xb, &nb);
        return na == nb && (na == 0 || memcmp(xa, xb, na * f->size) == 0);
    }
    if (f->flags & MLA_F_INLINE)
        return text_equal((const char *)xa, (const char *)xb);
    if (d->type == PROTOBUF_C_TYPE_STRING) {
        const char *sa, *sb;
        memcpy(&sa, xa, sizeof(sa));
        memcpy(&sb, xb, sizeof(sb));
        return text_equal(sa, sb);
    }
    if ((f->flags & MLA_F_HAS) && p->a[f->aux] != p->b[f->aux])
        return false;
    return memcmp(xa, xb, f->size) == 0;
}

/* Moves p on. 1: *inner is the next pair of messages in it; 0: there was none in this field; -1: they differ already.
 */
static int next_inner(struct pair *p, struct pair *inner)
{
    const struct mla_field *f = &p->body->fields[p->i];
    *inner = (struct pair){.body = f->sub, .a = p->a + f->offset, .b = p->b + f->offset};
    if (p->body->schema->fields[p->i].label != PROTOBUF_C_LABEL_REPEATED) {
        p->i++;
        return (f->flags & MLA_F_STATUS) || inner->a[0] == inner->b[0] ? 1 : -1;
    }
    size_t na, nb;
    get_array(f, p->a, &inner->a, &na);
    get_array(f, p->b, &inner->b, &nb);
    if (na != nb)
        return -1;
    if (p->element == na) {
        p->element = 0;
        p->i++;
        return 0;
    }
    inner->a += p->element * f->size;
    inner->b += p->element * f->size;
    p->element++;
    return 1;
}

static bool body_equal(const struct mla_body *body, const void *a, const void *b)
{
    struct pair stack[MLA_DEPTH_MAX] = {{.body = body, .a = a, .b = b}};
    unsigned depth = 1;
    while (depth > 0) {
        struct pair *p = &stack[depth - 1];
        if (p->i == p->body->n_fields) {
            depth--;
        } else if (p->body->fields[p->i].sub) {
            struct pair inner;
            int rc = next_inner(p, &inner);
            if (rc < 0)
                return false;
            if (rc > 0)
                stack[depth++] = inner;
        } else {
            if (!plain_equal(p))
                return false;
            p->i++;
        }
    }
    return true;
}

bool mla_message_equal(const struct mla_message *a, const struct mla_message *b)
{
    const struct mla_body *body = mla_body_of_type(a->type);
    return a->type == b->type && body && body_equal(body, &a->reply, &b->reply);
}
