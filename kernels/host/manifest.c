#include "kernels/host/manifest.h"

#include <errno.h>
#include <ini.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/host/mla_kernels.h"

/* X(name, member, least, most) */
#define NUMBERS(X)                                                                                                     \
    X(abi, abi, 0, UINT32_MAX)                                                                                         \
    X(by_name_only, by_name_only, 0, 1)                                                                                \
    X(min_compute_capability, min_compute_capability, 10, 9999)                                                        \
    X(max_compute_capability, max_compute_capability, 10, 9999)                                                        \
    X(decode_threads, decode_threads, 32, 1024)                                                                        \
    X(decode_shared_bytes, decode_shared_bytes, 0, 1u << 20)                                                           \
    X(tile_rows, tile_rows, 64, MLA_ABI_TILE_ROWS)                                                                     \
    X(rows_per_unit, rows_per_unit, 1, MLA_ABI_TILE_ROWS)                                                              \
    X(ctas_per_unit, ctas_per_unit, 1, 16)                                                                             \
    X(min_pages_per_split, min_pages_per_split, 1, 1u << 20)                                                           \
    X(max_pages_per_item, max_pages_per_item, 0, 1u << 20)                                                             \
    X(prepare_threads, prepare_threads, 32, 1024)                                                                      \
    X(reduce_threads, reduce_threads, 32, 1024)                                                                        \
    X(reduce_ctas_per_tile, reduce_ctas_per_tile, 1, 1024)                                                             \
    X(launch_ns, costs.launch_ns, 0, UINT32_MAX)                                                                       \
    X(fill_ns, costs.fill_ns, 0, UINT32_MAX)                                                                           \
    X(page_ns, costs.page_ns, 1, UINT32_MAX)                                                                           \
    X(drain_ns, costs.drain_ns, 0, UINT32_MAX)                                                                         \
    X(partial_ns, costs.partial_ns, 0, UINT32_MAX)                                                                     \
    X(reduce_launch_ns, costs.reduce_launch_ns, 0, UINT32_MAX)                                                         \
    X(reduce_bytes_per_us, costs.reduce_bytes_per_us, 1, UINT32_MAX)                                                   \
    X(reduce_fixed_ns, costs.reduce_fixed_ns, 0, UINT32_MAX)

#define WORDS(X)                                                                                                       \
    X(arch)                                                                                                            \
    X(decode_file)                                                                                                     \
    X(decode_entry)                                                                                                    \
    X(prepare_file)                                                                                                    \
    X(prepare_entry)                                                                                                   \
    X(reduce_file)                                                                                                     \
    X(reduce_entry)                                                                                                    \
    X(few_rows)

static const struct number {
    const char *name;
    size_t offset;
    uint32_t least;
    uint32_t most;
} numbers[] = {
#define NUMBER(name, member, least, most) {#name, offsetof(struct kernels_section, member), least, most},
    NUMBERS(NUMBER)
#undef NUMBER
};

static const struct word {
    const char *name;
    size_t offset;
    size_t bytes;
} words[] = {
#define WORD(name) {#name, offsetof(struct kernels_section, name), sizeof(((struct kernels_section *)NULL)->name)},
    WORDS(WORD)
#undef WORD
};

enum { N_NUMBERS = sizeof numbers / sizeof numbers[0], N_WORDS = sizeof words / sizeof words[0] };
_Static_assert(N_NUMBERS + N_WORDS < 32, "a bit for each key");

struct reader {
    struct kernels_manifest *manifest;
    char wrong[160];
};

static bool refuse(struct reader *r, const char *what, const char *name)
{
    if (r->wrong[0] == '\0')
        snprintf(r->wrong, sizeof r->wrong, "%s %.80s", what, name);
    return false;
}

static bool see(struct reader *r, struct kernels_section *section, size_t bit, const char *name)
{
    if (section->keys >> bit & 1u)
        return refuse(r, "a second", name);
    section->keys |= 1u << bit;
    return true;
}

static bool set_number(struct reader *r, struct kernels_section *section, const struct number *n, const char *value)
{
    char *end;
    errno = 0;
    unsigned long long number = strtoull(value, &end, 10);
    if (value[0] < '0' || value[0] > '9' || *end != '\0' || errno != 0 || number < n->least || number > n->most)
        return refuse(r, "not a number that makes sense:", n->name);
    uint32_t narrow = (uint32_t)number;
    memcpy((char *)section + n->offset, &narrow, sizeof narrow);
    return true;
}

static bool set_word(struct reader *r, struct kernels_section *section, const struct word *w, const char *value)
{
    size_t length = strlen(value);
    if (length == 0 || length >= w->bytes || strchr(value, '/'))
        return refuse(r, "empty, too long or a path:", w->name);
    memcpy((char *)section + w->offset, value, length + 1);
    return true;
}

const struct kernels_section *kernels_manifest_find(const struct kernels_manifest *m, const char *name)
{
    for (uint32_t i = 0; i < m->n_sections; i++)
        if (strcmp(m->sections[i].name, name) == 0)
            return &m->sections[i];
    return NULL;
}

static struct kernels_section *section_of(struct reader *r, const char *name)
{
    struct kernels_manifest *m = r->manifest;
    const struct kernels_section *there = kernels_manifest_find(m, name);
    if (there)
        return &m->sections[there - m->sections];
    if (m->n_sections == KERNELS_MANIFEST_SECTIONS || name[0] == '\0' || strlen(name) >= sizeof m->sections[0].name)
        return NULL;
    struct kernels_section *section = &m->sections[m->n_sections++];
    memcpy(section->name, name, strlen(name) + 1);
    return section;
}

/* inih's handler: 1, or 0 for an error at this line. */
static int take(void *user, const char *section_name, const char *name, const char *value)
{
    struct reader *r = user;
    struct kernels_section *section = section_of(r, section_name);
    if (!section)
        return refuse(r, "too many sections, or a bad name:", section_name);
    for (size_t i = 0; i < N_NUMBERS; i++)
        if (strcmp(numbers[i].name, name) == 0)
            return see(r, section, i, name) && set_number(r, section, &numbers[i], value);
    for (size_t i = 0; i < N_WORDS; i++)
        if (strcmp(words[i].name, name) == 0)
            return see(r, section, N_NUMBERS + i, name) && set_word(r, section, &words[i], value);
    return refuse(r, "unknown key", name);
}

/* The keys of the prepare kernel come together or not at all. */
static bool is_optional(const struct kernels_section *section, const char *name)
{
    if (strcmp(name, "by_name_only") == 0 || strcmp(name, "few_rows") == 0)
        return true;
    return strncmp(name, "prepare_", 8) == 0 && section->prepare_threads == 0 && section->prepare_file[0] == '\0' &&
           section->prepare_entry[0] == '\0';
}

static const char *missing_key(const struct kernels_section *section)
{
    for (size_t i = 0; i < N_NUMBERS; i++)
        if (!(section->keys >> i & 1u) && !is_optional(section, numbers[i].name))
            return numbers[i].name;
    for (size_t i = 0; i < N_WORDS; i++)
        if (!(section->keys >> (N_NUMBERS + i) & 1u) && !is_optional(section, words[i].name))
            return words[i].name;
    return NULL;
}

static int check(const char *path, const struct kernels_section *section, char *why, size_t why_bytes)
{
    const char *missing = missing_key(section);
    if ((section->keys & 1u) && section->abi != MLA_ABI_VERSION) {
        snprintf(why, why_bytes, "%s: [%s] is of kernel ABI %u, this library has %u", path, section->name, section->abi,
                 MLA_ABI_VERSION);
        return -EINVAL;
    }
    if (missing) {
        snprintf(why, why_bytes, "%s: [%s] has no %s", path, section->name, missing);
        return -EINVAL;
    }
    bool tiles = section->tile_rows == 64 || section->tile_rows == 128 || section->tile_rows == 256;
    bool even = section->prepare_file[0] || section->tile_rows % section->rows_per_unit == 0;
    if (!tiles || !even) {
        snprintf(why, why_bytes, "%s: [%s] has tiles of %u rows in units of %u", path, section->name,
                 section->tile_rows, section->rows_per_unit);
        return -EINVAL;
    }
    return 0;
}

/* Sections from this one on, each the few_rows of the one before; they end, as each has fewer rows. */
static uint32_t kinds_of(const struct kernels_manifest *m, const struct kernels_section *section)
{
    uint32_t n = 0;
    for (; section && n <= MLA_KERNELS_KINDS_MAX; n++)
        section = section->few_rows[0] ? kernels_manifest_find(m, section->few_rows) : NULL;
    return n;
}

/* The planner's parts of jobs, and what their partials take at least, have to be the same for both. */
static int check_few_rows(const char *path, const struct kernels_manifest *m, const struct kernels_section *section,
                          char *why, size_t why_bytes)
{
    if (section->few_rows[0] == '\0')
        return 0;
    const struct kernels_section *few = kernels_manifest_find(m, section->few_rows);
    if (!few) {
        snprintf(why, why_bytes, "%s: few_rows of [%s] is %s, which is no section", path, section->name,
                 section->few_rows);
        return -EINVAL;
    }
    if (few->rows_per_unit >= section->rows_per_unit || few->tile_rows != section->tile_rows ||
        few->max_pages_per_item != section->max_pages_per_item) {
        snprintf(why, why_bytes,
                 "%s: few_rows of [%s] is [%s], which has as many rows to a unit, or other tile_rows or "
                 "max_pages_per_item",
                 path, section->name, few->name);
        return -EINVAL;
    }
    if (kinds_of(m, section) > MLA_KERNELS_KINDS_MAX) {
        snprintf(why, why_bytes, "%s: few_rows of [%s]: more than %d sections one after the other", path, section->name,
                 MLA_KERNELS_KINDS_MAX);
        return -EINVAL;
    }
    return 0;
}

int kernels_manifest_read(const char *path, struct kernels_manifest *manifest, char *why, size_t why_bytes)
{
    struct reader reader = {.manifest = manifest};
    memset(manifest, 0, sizeof *manifest);
    FILE *file = fopen(path, "re");
    if (!file) {
        snprintf(why, why_bytes, "%s: %s", path, strerror(errno));
        return -ENOENT;
    }
    int line = ini_parse_file(file, take, &reader);
    fclose(file);
    if (line != 0) {
        snprintf(why, why_bytes, "%s:%d: %s", path, line, reader.wrong[0] ? reader.wrong : "not a manifest");
        return -EINVAL;
    }
    if (manifest->n_sections == 0) {
        snprintf(why, why_bytes, "%s: no section", path);
        return -EINVAL;
    }
    for (uint32_t i = 0; i < manifest->n_sections; i++) {
        int rc = check(path, &manifest->sections[i], why, why_bytes);
        if (rc != 0)
            return rc;
    }
    for (uint32_t i = 0; i < manifest->n_sections; i++) {
        int rc = check_few_rows(path, manifest, &manifest->sections[i], why, why_bytes);
        if (rc != 0)
            return rc;
    }
    return 0;
}
