/* Pieces of backend host memory that jobs hold from SUBMIT to REPLY, used again and again. A kept piece's own first
 * bytes are its place on the list: nothing else writes to it by then, as the job that had it has ended. */
#include "daemon/app/state.h"

/* Whoever uses a piece that is kept is seen by the sanitizer for addresses, as with memory that has been freed. */
#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
#else
#define ASAN_POISON_MEMORY_REGION(memory, bytes)   ((void)(memory), (void)(bytes))
#define ASAN_UNPOISON_MEMORY_REGION(memory, bytes) ((void)(memory), (void)(bytes))
#endif

#define LEAST_BYTES    64u                    /* of a piece; those of class c have 2^c times as many */
#define KEPT_BYTES_MAX ((size_t)1024 * 1024u) /* without a job, of all together */

struct host_piece {
    struct host_piece *next;
    uint64_t address;
};

_Static_assert(sizeof(struct host_piece) <= LEAST_BYTES, "the least piece can be on a list");

/* APP_HOST_CLASSES: larger than any that is kept. */
static unsigned class_of(size_t bytes)
{
    unsigned c = 0;
    while (c < APP_HOST_CLASSES && (size_t)LEAST_BYTES << c < bytes)
        c++;
    return c;
}

void *host_take(struct app *app, size_t bytes, uint64_t *address)
{
    unsigned c = class_of(bytes);
    if (c == APP_HOST_CLASSES)
        return app_host_alloc(app, bytes, address);
    struct host_piece *piece = app->host_pool.kept[c];
    if (piece == NULL)
        return app_host_alloc(app, (size_t)LEAST_BYTES << c, address);
    ASAN_UNPOISON_MEMORY_REGION(piece, (size_t)LEAST_BYTES << c);
    app->host_pool.kept[c] = piece->next;
    app->host_pool.kept_bytes -= (size_t)LEAST_BYTES << c;
    *address = piece->address;
    return piece;
}

void host_give(struct app *app, void *memory, uint64_t address, size_t bytes)
{
    unsigned c = class_of(bytes);
    if (memory == NULL)
        return;
    /* What has run on a device that is lost may not have ended: nobody reads what it could write. */
    if (c == APP_HOST_CLASSES || app->device_lost ||
        app->host_pool.kept_bytes + ((size_t)LEAST_BYTES << c) > KEPT_BYTES_MAX) {
        be_host_free(&app->be, memory);
        return;
    }
    struct host_piece *piece = memory;
    *piece = (struct host_piece){.next = app->host_pool.kept[c], .address = address};
    app->host_pool.kept[c] = piece; /* the warmest one is used next */
    app->host_pool.kept_bytes += (size_t)LEAST_BYTES << c;
    ASAN_POISON_MEMORY_REGION(piece, (size_t)LEAST_BYTES << c);
}

bool host_pool_forget(struct app *app)
{
    bool any = app->host_pool.kept_bytes > 0;
    for (unsigned c = 0; c < APP_HOST_CLASSES; c++) {
        for (struct host_piece *piece = app->host_pool.kept[c], *next; piece != NULL; piece = next) {
            ASAN_UNPOISON_MEMORY_REGION(piece, (size_t)LEAST_BYTES << c);
            next = piece->next;
            be_host_free(&app->be, piece);
        }
    }
    app->host_pool = (struct app_host_pool){0};
    return any;
}
