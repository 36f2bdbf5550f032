/* A worker's connection to a daemon, for the benchmarks. What fails ends the program with a line on stderr. */
#ifndef MLA_TESTS_BENCH_SERVE_LINK_H
#define MLA_TESTS_BENCH_SERVE_LINK_H

#include "proto/enums.h"
#include "proto/status.h"

#include <mla/cuda.h>

#include "tests/bench/gpu/pool.h"

#define LINK_TIMEOUT_US UINT64_C(60000000)

void link_must(struct mla_client *client, enum mla_status status, const char *what);

/* features: beside CUDA_IPC; spin_us: of the client's waits. */
struct mla_client *link_open(const char *socket, const char *name, uint64_t features, uint64_t spin_us);

/* Registers Q and O of the pool; the arguments of a decode but for cache, plane and tables. O is e4m3. */
void link_args(struct mla_client *client, const struct pool *pool, uint32_t heads, struct mla_decode_args *args);

/* Registers the pool's pages. */
mla_region_id link_pages(struct mla_client *client, const struct pool *pool);

/* Puts a shape as table set id; entries: its pages'. */
void link_tables(struct mla_client *client, mla_tables_id id, const struct shape *shape, const int32_t *entries);

/* The row of O that ends at row `rows` is e4m3 numbers, not zeros for the most part. */
void link_check(const struct pool *pool, const struct shape *shape);

#endif
