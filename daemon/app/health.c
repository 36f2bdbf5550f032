#include "daemon/app/health.h"

#include <stdio.h>
#include <string.h>

static const struct {
    const char *name, *meaning;
    unsigned window, raise, clear;
} rules[HEALTH_REASONS] = {
#define ROW(name, window, raise, clear, text) {#name, text, window, raise, clear},
    HEALTH_REASON_LIST(ROW)
#undef ROW
};

static uint64_t last(uint64_t found, unsigned looks)
{
    return looks >= 64 ? found : found & ((UINT64_C(1) << looks) - 1);
}

/* Without overflow: a / b > HEALTH_RATIO. */
static bool far_above(uint64_t a, uint64_t b)
{
    return a / HEALTH_RATIO > b;
}

static bool overdue(const struct health *h, const struct health_look *look)
{
    uint64_t least = HEALTH_OVERDUE_NS + h->late_ns;
    uint64_t left = look->running_ns > least ? look->running_ns - least : 0;
    return left / HEALTH_OVERDUE_TIMES > look->running_predicted_ns;
}

static bool found(const struct health *h, const struct health_look *look, enum health_reason reason)
{
    const struct health_look *before = &h->before;
    uint64_t predicted = look->predicted_ns - before->predicted_ns, measured = look->measured_ns - before->measured_ns;
    switch (reason) {
    case HEALTH_device_stalled:
        return look->device_progress == before->device_progress;
    case HEALTH_launch_overdue:
        return overdue(h, look);
    case HEALTH_device_lag:
        return look->device_lag_ns > HEALTH_DEVICE_LAG_NS;
    case HEALTH_loop_lag:
        return look->turn_max_ns > HEALTH_LOOP_LAG_NS;
    case HEALTH_predictions:
        return predicted > 0 && ((measured >= HEALTH_RATIO_NS && far_above(measured, predicted)) ||
                                 (predicted >= HEALTH_RATIO_NS && far_above(predicted, measured)));
    case HEALTH_overloaded:
        return look->refused != before->refused;
    case HEALTH_job_errors:
        return look->errors != before->errors;
    case HEALTH_descriptors:
        return look->accept_pauses != before->accept_pauses;
    case HEALTH_REASONS:
        break;
    }
    return false;
}

void health_start(struct health *h, const struct health_look *first)
{
    memset(h, 0, sizeof(*h));
    h->before = *first;
}

bool health_step(struct health *h, const struct health_look *look)
{
    uint32_t was = h->now;
    /* What looks before this one were late is not of this launch if it has begun since the last. */
    h->late_ns = look->late_ns + (look->running_ns > look->late_ns + HEALTH_LOOK_NS ? h->late_ns : 0);
    if (h->late_ns > look->running_ns)
        h->late_ns = look->running_ns;
    for (unsigned i = 0; i < HEALTH_REASONS; i++) {
        h->found[i] = h->found[i] << 1 | found(h, look, (enum health_reason)i);
        bool is = h->now >> i & 1;
        if (!is && (unsigned)__builtin_popcountll(last(h->found[i], rules[i].window)) >= rules[i].raise) {
            h->now |= 1u << i;
            h->raised[i]++;
        } else if (is && last(h->found[i], rules[i].clear) == 0) {
            h->now &= ~(1u << i);
        }
    }
    h->before = *look;
    return h->now != was;
}

bool health_is(const struct health *h, enum health_reason reason)
{
    return h->now >> reason & 1;
}

const char *health_name(enum health_reason reason)
{
    return rules[reason].name;
}

const char *health_meaning(enum health_reason reason)
{
    return rules[reason].meaning;
}

static void list(const struct health *h, bool meanings, char *out, size_t bytes)
{
    size_t n = 0;
    out[0] = '\0';
    for (unsigned i = 0; i < HEALTH_REASONS; i++) {
        if (!health_is(h, (enum health_reason)i) || n >= bytes)
            continue;
        int k = meanings ? snprintf(out + n, bytes - n, "%s%s: %s", n > 0 ? "; " : "", rules[i].name, rules[i].meaning)
                         : snprintf(out + n, bytes - n, "%s%s", n > 0 ? ", " : "", rules[i].name);
        n += k > 0 ? (size_t)k : 0;
    }
}

void health_text(const struct health *h, char *out, size_t bytes)
{
    list(h, true, out, bytes);
}

void health_names(const struct health *h, char *out, size_t bytes)
{
    list(h, false, out, bytes);
}
