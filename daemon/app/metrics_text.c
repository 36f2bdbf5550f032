#include "daemon/app/metrics_text.h"

#include <stdio.h>
#include <stdlib.h>

static const char *type_name(enum mla_metric_type type)
{
    return type == MLA_METRIC_COUNTER ? "counter" : type == MLA_METRIC_GAUGE ? "gauge" : "histogram";
}

char *metrics_text(const struct mla_metrics_reply *reply, size_t *bytes)
{
    char *text = NULL;
    FILE *out = open_memstream(&text, bytes);
    if (out == NULL)
        return NULL;
    for (size_t i = 0; i < reply->n_metrics; i++) {
        const struct mla_metric *f = &reply->metrics[i];
        fprintf(out, "# HELP %s %s\n# TYPE %s %s\n", f->name, f->help, f->name, type_name(f->type));
        for (size_t k = 0; k < f->n_samples; k++) {
            const struct mla_sample *s = &f->samples[k];
            const char *open = s->labels[0] == '\0' ? "" : "{", *close = s->labels[0] == '\0' ? "" : "}";
            fprintf(out, "%s%s%s%s%s %.15g\n", f->name, s->suffix, open, s->labels, close, s->value);
        }
    }
    bool failed = ferror(out) != 0;
    if (fclose(out) != 0 || failed) {
        free(text);
        return NULL;
    }
    return text;
}
