/* The watcher of a connection, on demand. */
#include "client/client.h"
#include "client/template.h"
#include "client/watch.h"

enum mla_status mla_watch_start(struct mla_client *client)
{
    enum mla_status status = mlac_begin(client);
    if (status != MLA_OK || client->core.watch)
        return status;
    client->watching = client->core.recovers; /* of later connections, too */
    if (client->down)
        return MLA_OK;
    int rc = mlac_watch_start(client->sock, &client->core.watch);
    if (rc) {
        client->watching = false;
        return mlac_system_error(client, -rc, "the watcher's thread");
    }
    list_for_each (node, &client->core.flight) {
        struct mlac_request *r = list_entry(node, struct mlac_request, order);
        if (r->done_word)
            mlac_watch_add(client->core.watch, r);
    }
    list_for_each (node, &client->core.templates)
        mlac_watch_add_template(client->core.watch, list_entry(node, struct mla_template, node));
    return MLA_OK;
}
