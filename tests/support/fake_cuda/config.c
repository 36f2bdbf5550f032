#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/fake_cuda/fake.h"

static struct fake_config config = {
    .devices = 1,
    .memory_bytes = UINT64_C(8) << 30,
    .sms = 132,
    .major = 9,
    .driver = CUDA_VERSION,
    .name = "NVIDIA H200 (fake)",
    .uuid = {0x6d, 0x6c, 0x61, 0x64, 0xfa, 0xce, 0x40, 0x00, 0x80, 0x00, 0x66, 0x61, 0x6b, 0x65, 0x00, 0x00},
    .ipc = true,
    .vmm = true,
};

/* In a program whose allocations are counted (count_alloc.c), those of this library are not. */
extern void mla_count_alloc_but(const void *first, const void *end) __attribute__((weak));
extern const char __ehdr_start[] __attribute__((visibility("hidden")));
extern const char _end[] __attribute__((visibility("hidden")));

__attribute__((constructor)) static void do_not_count(void)
{
    if (mla_count_alloc_but != NULL)
        mla_count_alloc_but(__ehdr_start, _end);
}

void fake_pairs(const char *text, void (*take)(const char *key, const char *value))
{
    char *copy = strdup(text);
    if (!copy)
        fake_abort("no memory");
    char *state = NULL;
    for (char *pair = strtok_r(copy, ";\n", &state); pair; pair = strtok_r(NULL, ";\n", &state)) {
        pair += strspn(pair, " \t\r");
        size_t end = strlen(pair);
        while (end > 0 && strchr(" \t\r", pair[end - 1]))
            pair[--end] = '\0';
        if (*pair == '\0' || *pair == '#')
            continue;
        char *equals = strchr(pair, '=');
        if (!equals)
            fake_abort("\"%s\" is not key=value", pair);
        *equals = '\0';
        char *key_end = equals;
        while (key_end > pair && strchr(" \t", key_end[-1]))
            *--key_end = '\0';
        const char *value = equals + 1;
        take(pair, value + strspn(value, " \t"));
    }
    free(copy);
}

static uint64_t number(const char *key, const char *value, uint64_t most)
{
    char *end;
    uint64_t n = strtoull(value, &end, 0);
    if (end != value && (*end == 'K' || *end == 'M' || *end == 'G'))
        n <<= *end == 'K' ? 10 : *end == 'M' ? 20 : 30, end++;
    if (end == value || *end != '\0' || n > most)
        fake_abort("%s=%s is no number up to %llu", key, value, (unsigned long long)most);
    return n;
}

static void take_text(char *out, size_t out_bytes, const char *key, const char *value)
{
    if ((size_t)snprintf(out, out_bytes, "%s", value) >= out_bytes)
        fake_abort("%s: longer than %zu bytes", key, out_bytes - 1);
}

static void take_uuid(const char *value)
{
    if (strlen(value) != 32)
        fake_abort("uuid=%s is not 32 hexadecimal digits", value);
    for (int i = 0; i < 16; i++)
        if (sscanf(value + 2 * i, "%2hhx", &config.uuid[i]) != 1)
            fake_abort("uuid=%s is not 32 hexadecimal digits", value);
}

static void take_attribute(const char *key, const char *value)
{
    if (config.n_attributes == (int)(sizeof config.attributes / sizeof config.attributes[0]))
        fake_abort("too many attributes");
    config.attributes[config.n_attributes++] =
        (struct fake_attribute){(int)number(key, key + strlen("attribute."), 10000), atoi(value)};
}

static void take(const char *key, const char *value)
{
    if (!strcmp(key, "devices"))
        config.devices = (int)number(key, value, FAKE_DEVICES_MAX);
    else if (!strcmp(key, "memory"))
        config.memory_bytes = number(key, value, UINT64_C(1) << 46);
    else if (!strcmp(key, "sms"))
        config.sms = (int)number(key, value, 1024);
    else if (!strcmp(key, "driver"))
        config.driver = (int)number(key, value, 1000000);
    else if (!strcmp(key, "name"))
        take_text(config.name, sizeof config.name, key, value);
    else if (!strcmp(key, "uuid"))
        take_uuid(value);
    else if (!strcmp(key, "mps"))
        config.mps = number(key, value, 1) != 0;
    else if (!strcmp(key, "ipc"))
        config.ipc = number(key, value, 1) != 0;
    else if (!strcmp(key, "vmm"))
        config.vmm = number(key, value, 1) != 0;
    else if (!strcmp(key, "report"))
        take_text(config.report, sizeof config.report, key, value);
    else if (!strcmp(key, "faults"))
        take_text(config.faults, sizeof config.faults, key, value);
    else if (!strncmp(key, "attribute.", strlen("attribute.")))
        take_attribute(key, value);
    else if (strcmp(key, "capability") != 0)
        fake_rule_add(key, value);
    else if (sscanf(value, "%d.%d", &config.major, &config.minor) != 2)
        fake_abort("capability=%s is not MAJOR.MINOR", value);
}

static void load(void)
{
    const char *text = getenv("MLA_FAKE_CUDA");
    fake_pairs(text ? text : "", take);
    if (config.report[0] != '\0')
        fake_report_open(config.report);
}

const struct fake_config *fake_config(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, load);
    return &config;
}

void fake_device_uuid(int device, unsigned char uuid[16])
{
    memcpy(uuid, fake_config()->uuid, 16);
    uuid[15] = (unsigned char)(uuid[15] + device);
}
