/* METRICS in Prometheus' text exposition format 0.0.4, or as JSON. */
#include <stdio.h>

#include "daemon/ctl/ctl.h"
#include "daemon/util/json.h"

static const char *type_name(enum mla_metric_type type)
{
    return type == MLA_METRIC_COUNTER ? "counter" : type == MLA_METRIC_GAUGE ? "gauge" : "histogram";
}

static void print_text(const struct mla_metrics_info *m)
{
    for (size_t i = 0; i < m->n_families; i++) {
        const struct mla_metric_family *f = m->families[i];
        printf("# HELP %s %s\n# TYPE %s %s\n", f->name, f->help, f->name, type_name(f->type));
        for (size_t k = 0; k < f->n_samples; k++) {
            const struct mla_metric_sample *s = &f->samples[k];
            printf("%s%s%s%s%s %.15g\n", f->name, s->suffix, s->labels[0] ? "{" : "", s->labels,
                   s->labels[0] ? "}" : "", s->value);
        }
    }
}

static void print_json(const struct mla_metrics_info *m)
{
    struct json j;
    json_init(&j, stdout);
    json_array(&j, NULL);
    for (size_t i = 0; i < m->n_families; i++) {
        const struct mla_metric_family *f = m->families[i];
        json_object(&j, NULL);
        json_string(&j, "name", f->name);
        json_string(&j, "help", f->help);
        json_string(&j, "type", type_name(f->type));
        json_array(&j, "samples");
        for (size_t k = 0; k < f->n_samples; k++) {
            json_object(&j, NULL);
            json_string(&j, "suffix", f->samples[k].suffix);
            json_string(&j, "labels", f->samples[k].labels);
            json_double(&j, "value", f->samples[k].value);
            json_end(&j);
        }
        json_end_array(&j);
        json_end(&j);
    }
    json_end_array(&j);
    putchar('\n');
}

int ctl_metrics(struct ctl *ctl)
{
    struct mla_metrics_info *m;
    if (mla_read_metrics(ctl->client, ctl->timeout_us, &m) != MLA_OK)
        return ctl_fail(ctl, "metrics");
    if (ctl->json)
        print_json(m);
    else
        print_text(m);
    mla_free(m);
    return CTL_EXIT_OK;
}
