/* Files and words that an operator gives the daemon. The first byte says what the rest is:
 *     c   a configuration file: what is taken is printed as a file that means the same
 *     k   a file of cost constants
 *     s   one section.key=value of the command line
 *     r   a configuration that a running daemon of another one reloads, the two parted by a zero byte */
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "daemon/app/config.h"
#include "daemon/app/costs.h"
#include "tests/fuzz/fuzz.h"

#define WHY_BYTES 192

static char path[64];

/* One file, its content replaced. */
static void put(const void *bytes, size_t n)
{
    static int fd = -1;
    if (fd < 0) {
        fd = memfd_create("fuzz_config", MFD_CLOEXEC);
        FUZZ_CHECK(fd >= 0);
        snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
    }
    FUZZ_CHECK(ftruncate(fd, 0) == 0 && pwrite(fd, bytes, n, 0) == (ssize_t)n);
}

static void check_why(int rc, const char *why)
{
    FUZZ_CHECK(rc == 0 || rc == -1);
    FUZZ_CHECK((rc == 0) == (why[0] == '\0'));
    FUZZ_CHECK(memchr(why, '\0', WHY_BYTES));
}

static int load(struct app_config *config, const void *bytes, size_t n)
{
    char why[WHY_BYTES] = "";
    put(bytes, n);
    config_defaults(config);
    int rc = config_load(config, path, why, sizeof(why));
    check_why(rc, why);
    if (rc != 0)
        FUZZ_CHECK(strncmp(why, path, strlen(path)) == 0);
    return rc;
}

static void check_fine(const struct app_config *config)
{
    char why[WHY_BYTES] = "";
    check_why(config_check(config, why, sizeof(why)), why);
}

/* config, printed and read again. */
static void check_printed(const struct app_config *config)
{
    static char text[1u << 16];
    struct app_config again;
    FILE *out = fmemopen(text, sizeof(text), "w");
    FUZZ_CHECK(out);
    config_print(config, out);
    FUZZ_CHECK(fclose(out) == 0);
    FUZZ_CHECK(load(&again, text, strlen(text)) == 0);
    char later[256];
    FUZZ_CHECK(config_reload(&again, config, later, sizeof(later)) == 0 && later[0] == '\0');
}

static void reload(const uint8_t *bytes, size_t n)
{
    struct app_config live, fresh;
    const uint8_t *zero = memchr(bytes, 0, n);
    size_t first = zero ? (size_t)(zero - bytes) : n;
    if (load(&live, bytes, first) != 0 || load(&fresh, bytes + first + !!zero, n - first - !!zero) != 0)
        return;
    char later[2][64];
    config_reload(&live, &fresh, later[0], sizeof(later[0]));
    FUZZ_CHECK(memchr(later[0], '\0', sizeof(later[0])));
    FUZZ_CHECK(config_reload(&live, &fresh, later[1], sizeof(later[1])) == 0 && strcmp(later[0], later[1]) == 0);
    check_fine(&live);
}

static void one_word(const uint8_t *bytes, size_t n)
{
    struct app_config config;
    char why[WHY_BYTES] = "";
    char *word = strndup((const char *)bytes, n);
    FUZZ_CHECK(word);
    config_defaults(&config);
    check_why(config_set(&config, word, why, sizeof(why)), why);
    free(word);
    check_fine(&config);
}

static void costs(const uint8_t *bytes, size_t n)
{
    struct costs_file out;
    char why[WHY_BYTES] = "";
    put(bytes, n);
    int rc = costs_load(path, &out, why, sizeof(why));
    check_why(rc, why);
    if (rc == 0) {
        FUZZ_CHECK(memchr(out.device, '\0', sizeof(out.device)));
        FUZZ_CHECK(out.rows_per_unit > 0 && out.costs.page_ns > 0 && out.costs.reduce_bytes_per_us > 0);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct app_config config;
    if (size < 1)
        return 0;
    data++;
    size--;
    switch (data[-1]) {
    case 'c':
        if (load(&config, data, size) == 0) {
            check_fine(&config);
            check_printed(&config);
        }
        break;
    case 'k':
        costs(data, size);
        break;
    case 's':
        one_word(data, size);
        break;
    case 'r':
        reload(data, size);
        break;
    default:
        break;
    }
    return 0;
}
