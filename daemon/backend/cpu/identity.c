#include "daemon/backend/cpu/identity.h"

#include <sched.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "daemon/util/random.h"

/* FNV-1a over the id and a name of our own, then a mixer, so that the machine id itself is not handed out. */
static uint64_t hash(const char *text, uint64_t seed)
{
    uint64_t h = UINT64_C(0xcbf29ce484222325) ^ seed;
    for (; *text; text++)
        h = (h ^ (unsigned char)*text) * UINT64_C(0x100000001b3);
    h = (h ^ h >> 32) * UINT64_C(0xd6e8feb86659fd93);
    h = (h ^ h >> 32) * UINT64_C(0xd6e8feb86659fd93);
    return h ^ h >> 32;
}

static bool read_line(const char *path, char *line, size_t bytes)
{
    line[0] = '\0';
    FILE *f = fopen(path, "re");
    if (!f)
        return false;
    if (!fgets(line, (int)bytes, f))
        line[0] = '\0';
    fclose(f);
    line[strcspn(line, "\n")] = '\0';
    return line[0] != '\0';
}

/* A container may have no machine id: then the kernel's boot id, which lasts as long as memory can be shared. */
void cpu_identity_uuid(char *out, size_t bytes)
{
    char id[64];
    uint64_t words[2] = {0, 0};
    if (read_line("/etc/machine-id", id, sizeof id) || read_line("/proc/sys/kernel/random/boot_id", id, sizeof id)) {
        words[0] = hash(id, UINT64_C(0x6d6c61642d637075));
        words[1] = hash(id, UINT64_C(0x2d6964656e746974));
    } else if (mla_random_bytes(words, sizeof words) != 0) {
        words[0] = (uint64_t)getpid();
    }
    snprintf(out, bytes, "CPU-%016llx%016llx", (unsigned long long)words[0], (unsigned long long)words[1]);
}

void cpu_identity_name(char *out, size_t bytes)
{
    snprintf(out, bytes, "CPU");
    FILE *f = fopen("/proc/cpuinfo", "re");
    if (!f)
        return;
    char line[256];
    while (fgets(line, sizeof line, f)) {
        char *value = strchr(line, ':');
        if (strncmp(line, "model name", 10) != 0 || !value)
            continue;
        value += value[1] == ' ' ? 2 : 1;
        value[strcspn(value, "\n")] = '\0';
        snprintf(out, bytes, "%s", value);
        break;
    }
    fclose(f);
}

uint32_t cpu_identity_count(void)
{
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set) == 0 && CPU_COUNT(&set) > 0)
        return (uint32_t)CPU_COUNT(&set);
    long online = sysconf(_SC_NPROCESSORS_ONLN);
    return online > 0 ? (uint32_t)online : 1;
}
