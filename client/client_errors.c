#include "client/client.h"

#include <stdarg.h>
#include <stdio.h>

const char *mla_errname(enum mla_status status)
{
    return mla_status_name(status);
}

const char *mla_strerror(enum mla_status status)
{
    return mla_status_text(status);
}

const struct mla_error_info *mla_last_error(const struct mla_client *client)
{
    static const struct mla_error_info none = {.status = MLA_INVALID_ARGUMENT, .text = "there is no client"};
    return client ? &client->error : &none;
}

enum mla_status mlac_fail(struct mla_client *c, enum mla_status status, const char *field, const char *fmt, ...)
{
    struct mla_error_info *e = &c->error;
    memset(e, 0, sizeof(*e));
    e->status = status;
    if (field)
        snprintf(e->field, sizeof(e->field), "%s", field);
    va_list args;
    va_start(args, fmt);
    vsnprintf(e->text, sizeof(e->text), fmt, args);
    va_end(args);
    return status;
}

enum mla_status mla_set_error(struct mla_client *client, const struct mla_error_info *info)
{
    if (!client || !info)
        return MLA_INVALID_ARGUMENT;
    client->error = *info;
    return info->status;
}

enum mla_status mlac_refused(struct mla_client *c, const struct mla_error *err)
{
    mlac_error_info(&c->error, err);
    return err->code;
}

enum mla_status mlac_ended(struct mla_client *c)
{
    mlac_error_info(&c->error, &c->core.reason);
    c->error.status = MLA_DISCONNECTED;
    return MLA_DISCONNECTED;
}

enum mla_status mlac_pending(struct mla_client *c)
{
    return mlac_fail(c, MLA_PENDING, NULL, "%s", mla_status_text(MLA_PENDING));
}

int mlac_copy_in(void *out, size_t out_size, const void *in, size_t least)
{
    size_t size;
    memcpy(&size, in, sizeof(size));
    if (size < least)
        return 1;
    memcpy(out, in, size < out_size ? size : out_size);
    return 0;
}
