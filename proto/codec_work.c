/* Table sets, DECODE, templates and steps, CANCEL. */
#include "proto/codec_table.h"

#include "proto/mla.pb-c.h"

#define WORD_LINE_BYTES 64u /* words of a sync page have a cache line each */
#define PRIORITY_MAX    3u
#define SEQ_STRIDE_BIT  (1u << 2) /* of Tensor in seen: field 3 */

/* ---- table sets ---- */

#define T struct mla_put_table_set_request
static const struct mla_field put_table_set_request_fields[] = {
    MLA_X(id, MLA_F_REQUIRED),
    MLA_N_X(q_len, MLA_F_CAP, .max = MLA_Q_LEN_MAX, .count_max = MLA_SEQS_PER_JOB_MAX),
    MLA_N_X(kv_len_max, MLA_F_CAP, .max = MLA_KV_LEN_MAX, .count_max = MLA_SEQS_PER_JOB_MAX),
    MLA_N_X(pages, 0),
    MLA_X(entries_per_seq, 0),
    MLA_X(tokens_per_entry, MLA_F_CAP, .def = MLA_PAGE_TOKENS, .min = MLA_PAGE_TOKENS, .max = MLA_TOKENS_PER_ENTRY_MAX,
          .multiple = MLA_PAGE_TOKENS),
};
#undef T

/* Every sequence must find its ceil(kv_len_max / tokens_per_entry) entries in the table. */
static int table_check(const struct mla_put_table_set_request *r, struct mla_error *err)
{
    uint64_t packed = 0;
    for (size_t s = 0; s < r->n_kv_len_max; s++) {
        uint64_t need = (r->kv_len_max[s] + (uint64_t)r->tokens_per_entry - 1) / r->tokens_per_entry;
        packed += need;
        if (r->entries_per_seq == 0)
            continue;
        if (need > r->entries_per_seq)
            return mla_refuse(err, MLA_INVALID_ARGUMENT, "entries_per_seq", s, r->entries_per_seq, need,
                              "is less than this sequence needs (limit)");
        uint64_t end = s * (uint64_t)r->entries_per_seq + need;
        if (need > 0 && end > r->n_pages)
            return mla_refuse(err, MLA_INVALID_ARGUMENT, "pages", s, r->n_pages, end,
                              "ends before the entries that this sequence needs (limit)");
    }
    if (r->entries_per_seq == 0 && packed != r->n_pages)
        return mla_refuse(err, MLA_INVALID_ARGUMENT, "pages", 0, r->n_pages, packed,
                          "must have as many entries as the sequences need together (limit)");
    uint64_t most = r->n_kv_len_max * (uint64_t)r->entries_per_seq;
    if (r->entries_per_seq > 0 && r->n_pages > most)
        return mla_refuse(err, MLA_INVALID_ARGUMENT, "pages", 0, r->n_pages, most,
                          "has more entries than sequences times entries_per_seq");
    return 0;
}

static int put_table_set_check(void *plain, uint32_t seen, const char *const *names, struct mla_error *err)
{
    (void)seen;
    (void)names;
    const struct mla_put_table_set_request *r = plain;
    if (r->n_q_len != r->n_kv_len_max)
        return mla_refuse(err, MLA_INVALID_ARGUMENT, "kv_len_max", 0, r->n_kv_len_max, r->n_q_len,
                          "must have one element per element of q_len");
    uint64_t tokens = 0;
    for (size_t s = 0; s < r->n_q_len; s++)
        tokens += r->q_len[s];
    if (tokens > MLA_ROWS_PER_JOB_MAX)
        return mla_refuse(err, MLA_TOO_LARGE, "q_len", 0, tokens, MLA_ROWS_PER_JOB_MAX,
                          "has too many query tokens in sum");
    return r->n_pages > 0 ? table_check(r, err) : 0;
}
MLA_BODY_OF(put_table_set_request, put_table_set_check);
MLA_BODY_STATUS_ONLY(put_table_set_reply);

#define T struct mla_drop_table_set_request
static const struct mla_field drop_table_set_request_fields[] = {MLA_X(id, MLA_F_REQUIRED)};
#undef T
MLA_BODY_OF(drop_table_set_request, NULL);
MLA_BODY_STATUS_ONLY(drop_table_set_reply);

/* ---- references into regions ---- */

#define REF_BODY(kind, bytes)                                                                                          \
    static const struct mla_field kind##_fields[] = {                                                                  \
        MLA_X(region, MLA_F_REQUIRED),                                                                                 \
        MLA_X(offset, 0, .multiple = (bytes)),                                                                         \
    };                                                                                                                 \
    static const struct mla_body kind = {                                                                              \
        .schema = &mla__wire__ref__descriptor, .fields = kind##_fields, .n_fields = 2, .size = sizeof(struct mla_ref)}

#define T struct mla_ref
REF_BODY(ref_i32, 4);
REF_BODY(ref_u64, 8);
REF_BODY(ref_word, WORD_LINE_BYTES);
#undef T

static int tensor_check(void *plain, uint32_t seen, const char *const *names, struct mla_error *err)
{
    const struct mla_tensor *t = plain;
    if (!t->compact && !(seen & SEQ_STRIDE_BIT))
        return mla_refuse(err, MLA_INVALID_ARGUMENT, names[2], 0, 0, 0, "is required unless compact is set");
    return 0;
}

#define TENSOR_BODY(kind, bytes)                                                                                       \
    static const struct mla_field kind##_fields[] = {                                                                  \
        MLA_X(region, MLA_F_REQUIRED),                                                                                 \
        MLA_X(offset, 0, .multiple = (bytes)),                                                                         \
        MLA_X(seq_stride, 0, .multiple = (bytes)),                                                                     \
        MLA_X(token_stride, MLA_F_REQUIRED, .multiple = (bytes)),                                                      \
        MLA_X(head_stride, MLA_F_REQUIRED, .multiple = (bytes)),                                                       \
        MLA_X(compact, 0),                                                                                             \
    };                                                                                                                 \
    static const struct mla_body kind = {.schema = &mla__wire__tensor__descriptor,                                     \
                                         .fields = kind##_fields,                                                      \
                                         .n_fields = 6,                                                                \
                                         .size = sizeof(struct mla_tensor),                                            \
                                         .check = tensor_check}

#define T struct mla_tensor
TENSOR_BODY(tensor_rows, MLA_ALIGN_BYTES);
TENSOR_BODY(tensor_f32, 4);
#undef T

/* ---- DECODE ---- */

#define REF_NAMES(x) static const char *const x##_names[] = {#x ".region", #x ".offset"}
#define TENSOR_NAMES(x)                                                                                                \
    static const char *const x##_names[] = {#x ".region",       #x ".offset",      #x ".seq_stride",                   \
                                            #x ".token_stride", #x ".head_stride", #x ".compact"}
TENSOR_NAMES(q);
TENSOR_NAMES(q_rope);
TENSOR_NAMES(o);
TENSOR_NAMES(lse);
REF_NAMES(visible_ref);
REF_NAMES(kv_len_ref);
REF_NAMES(table_ref);
REF_NAMES(ready);
REF_NAMES(done);
REF_NAMES(status_ref);

#define SUB_X(x, bits, kind) MLA_X(x, bits, .sub = &(kind), .names = x##_names)
#define ONE_F32              0x3f800000u /* bits of 1.0f */

#define T struct mla_decode_request
static const struct mla_field decode_request_fields[] = {
    MLA_X(cache, MLA_F_REQUIRED),
    MLA_X(plane, 0),
    MLA_X(table_set, MLA_F_REQUIRED),
    MLA_X(heads, MLA_F_REQUIRED, .min = 1, .max = MLA_HEADS_MAX),
    SUB_X(q, MLA_F_REQUIRED, tensor_rows),
    SUB_X(q_rope, 0, tensor_rows),
    SUB_X(o, MLA_F_REQUIRED, tensor_rows),
    SUB_X(lse, 0, tensor_f32),
    MLA_ENUM_X(out_type, MLA_F_REQUIRED, MLA_DTYPE_F32),
    MLA_X(mask, MLA_F_ENUM, .min = 1, .max = MLA_MASK_VISIBLE, .def = MLA_MASK_CAUSAL),
    MLA_N_X(visible, 0),
    SUB_X(visible_ref, 0, ref_i32),
    SUB_X(kv_len_ref, 0, ref_i32),
    SUB_X(table_ref, 0, ref_i32),
    MLA_X(table_entries_per_seq, 0),
    MLA_X(q_scale, MLA_F_SCALE, .def = ONE_F32),
    MLA_X(kv_scale, MLA_F_SCALE, .def = ONE_F32),
    MLA_X(softmax_scale, MLA_F_SCALE | MLA_F_REQUIRED),
    MLA_X(out_scale, MLA_F_SCALE, .def = ONE_F32),
    MLA_X(batch_invariant, 0),
    MLA_X(timeout_us, 0),
    SUB_X(ready, 0, ref_word),
    MLA_X(ready_value, 0, .def = 1),
    SUB_X(done, 0, ref_word),
    MLA_X(done_value, 0, .def = 1),
    SUB_X(status_ref, 0, ref_u64),
    MLA_X(priority, 0, .max = PRIORITY_MAX),
};
#undef T

static int decode_check(void *plain, uint32_t seen, const char *const *names, struct mla_error *err)
{
    (void)seen;
    (void)names;
    const struct mla_decode_request *r = plain;
    const enum mla_status bad = MLA_INVALID_ARGUMENT;

    if (r->mask != MLA_MASK_VISIBLE && r->n_visible > 0)
        return mla_refuse(err, bad, "visible", 0, r->n_visible, 0, "belongs to mask VISIBLE only");
    if (r->mask != MLA_MASK_VISIBLE && r->visible_ref.present)
        return mla_refuse(err, bad, "visible_ref", 0, 0, 0, "belongs to mask VISIBLE only");
    if (r->n_visible > 0 && r->visible_ref.present)
        return mla_refuse(err, bad, "visible_ref", 0, r->n_visible, 0, "and visible exclude each other");
    if (r->table_ref.present && r->table_entries_per_seq == 0)
        return mla_refuse(err, bad, "table_entries_per_seq", 0, 0, 0, "is required with table_ref");
    if (!r->table_ref.present && r->table_entries_per_seq > 0)
        return mla_refuse(err, bad, "table_entries_per_seq", 0, r->table_entries_per_seq, 0, "needs table_ref");
    return 0;
}
MLA_BODY_OF(decode_request, decode_check);

#define T struct mla_sequence_fault
static const struct mla_field sequence_fault_fields[] = {
    MLA_X(sequence, 0),
    MLA_X(code, MLA_F_REQUIRED, .min = MLA_PAGE_OUT_OF_RANGE, .max = 499),
    MLA_X(index, 0),
    MLA_X(layer, 0),
};
#undef T
static MLA_BODY_OF(sequence_fault, NULL);

#define T struct mla_timing
static const struct mla_field timing_fields[] = {MLA_X(wait_us, 0), MLA_X(queue_us, 0), MLA_X(run_us, 0)};
#undef T
static MLA_BODY_OF(timing, NULL);
static const char *const timing_names[] = {"timing.wait_us", "timing.queue_us", "timing.run_us"};

#define T struct mla_decode_reply
static const struct mla_field decode_reply_fields[] = {
    MLA_STATUS_X,
    MLA_N_X(faults, 0, .sub = &mla_body_sequence_fault, .count_max = MLA_FAULTS_PER_REPLY_MAX),
    SUB_X(timing, 0, mla_body_timing),
    MLA_X(batch, 0),
    MLA_X(batch_jobs, 0),
    MLA_X(tiles, 0),
    MLA_X(items, 0),
    MLA_X(splits, 0),
};
#undef T
MLA_BODY_OF(decode_reply, NULL);

/* ---- captured steps ---- */

#define T struct mla_template_open_request
static const struct mla_field template_open_request_fields[] = {
    MLA_X(id, MLA_F_REQUIRED),
    MLA_N_X(layers, 0, .sub = &mla_body_decode_request, .count_max = MLA_LAYERS_MAX),
};
#undef T
static int template_open_check(void *plain, uint32_t seen, const char *const *names, struct mla_error *err)
{
    (void)seen;
    (void)names;
    const struct mla_template_open_request *r = plain;
    if (r->n_layers == 0)
        return mla_refuse(err, MLA_INVALID_ARGUMENT, "layers", 0, 0, MLA_LAYERS_MAX, "is required");
    for (size_t i = 0; i < r->n_layers; i++) {
        if (!r->layers[i].ready.present)
            return mla_refuse(err, MLA_INVALID_ARGUMENT, "ready", i, 0, 0, "is required of every layer");
        if (!r->layers[i].done.present)
            return mla_refuse(err, MLA_INVALID_ARGUMENT, "done", i, 0, 0, "is required of every layer");
    }
    return 0;
}
MLA_BODY_OF(template_open_request, template_open_check);
MLA_BODY_STATUS_ONLY(template_open_reply);

#define T struct mla_step_request
static const struct mla_field step_request_fields[] = {
    MLA_X(template_id, MLA_F_REQUIRED),
    MLA_HAS_X(table_set),
    MLA_X(timeout_us, 0),
};
#undef T
MLA_BODY_OF(step_request, NULL);

#define T struct mla_step_reply
static const struct mla_field step_reply_fields[] = {
    MLA_STATUS_X,
    SUB_X(timing, 0, mla_body_timing),
    MLA_X(layers_done, 0),
    MLA_N_X(faults, 0, .sub = &mla_body_sequence_fault, .count_max = MLA_FAULTS_PER_REPLY_MAX),
    MLA_X(layers_shared, 0),
};
#undef T
MLA_BODY_OF(step_reply, NULL);

#define T struct mla_template_close_request
static const struct mla_field template_close_request_fields[] = {MLA_X(id, MLA_F_REQUIRED)};
#undef T
MLA_BODY_OF(template_close_request, NULL);
MLA_BODY_STATUS_ONLY(template_close_reply);

#define T struct mla_cancel_request
static const struct mla_field cancel_request_fields[] = {MLA_X(request_id, MLA_F_REQUIRED)};
#undef T
MLA_BODY_OF(cancel_request, NULL);
MLA_BODY_STATUS_ONLY(cancel_reply);
