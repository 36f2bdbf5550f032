/* Faults as data: which call, which time, what happens. */
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/support/fake_cuda/fake.h"

#define RULES_MAX    64
#define HITS_MAX     8
#define FILE_MAX     16384
#define ANY_CALL     (-1)
#define HOLD_POLL_NS UINT64_C(1000000)

enum action { FAIL = 1, LOSE, DELAY, HOLD, KILL };

struct rule {
    int call;
    uint64_t nth; /* 0: every time */
    bool onwards;
    uint64_t seen;
    bool of_file;
    enum action action;
    CUresult result;
    uint64_t delay_ns;
    char path[256];
};

/* A lock of their own: a rule is applied with or without the driver's. */
static pthread_mutex_t rules_lock = PTHREAD_MUTEX_INITIALIZER;
static struct rule rules[RULES_MAX];
static int n_rules;
static bool reading_file;
static struct stat file_seen;

static void add_locked(const char *selector, const char *action)
{
    if (n_rules == RULES_MAX)
        fake_abort("more than %d rules", RULES_MAX);
    struct rule rule = {.of_file = reading_file};
    char name[64];
    snprintf(name, sizeof name, "%.*s", (int)strcspn(selector, "@"), selector);
    rule.call = strcmp(name, "*") == 0 ? ANY_CALL : mla_fake_call_find(name);
    if (rule.call == -1 && strcmp(name, "*") != 0)
        fake_abort("no key and no call is named %s", name);
    const char *at = strchr(selector, '@');
    if (at) {
        char *end;
        rule.nth = strtoull(at + 1, &end, 10);
        rule.onwards = *end == '+';
        if (rule.nth == 0 || end[rule.onwards] != '\0')
            fake_abort("%s: @N or @N+, N from 1", selector);
    }

    char verb[16];
    int after = 0;
    if (sscanf(action, "%15s %n", verb, &after) != 1)
        fake_abort("%s: no action", selector);
    const char *value = action + after;
    if (!strcmp(verb, "fail") || !strcmp(verb, "lose")) {
        int result = fake_error_find(value);
        if (result <= 0)
            fake_abort("%s=%s: not the name of an error", selector, action);
        rule.action = *verb == 'f' ? FAIL : LOSE;
        rule.result = (CUresult)result;
    } else if (!strcmp(verb, "delay") && *value) {
        rule.action = DELAY;
        rule.delay_ns = strtoull(value, NULL, 10) * 1000000u;
    } else if (!strcmp(verb, "hold") && *value && strlen(value) < sizeof rule.path) {
        rule.action = HOLD;
        snprintf(rule.path, sizeof rule.path, "%s", value);
    } else if (!strcmp(verb, "kill")) {
        rule.action = KILL;
    } else {
        fake_abort("%s=%s: fail NAME, lose NAME, delay MS, hold FILE or kill", selector, action);
    }
    rules[n_rules++] = rule;
}

void fake_rule_add(const char *selector, const char *action)
{
    pthread_mutex_lock(&rules_lock);
    add_locked(selector, action);
    pthread_mutex_unlock(&rules_lock);
}

void fake_rules_clear(void)
{
    pthread_mutex_lock(&rules_lock);
    n_rules = 0;
    pthread_mutex_unlock(&rules_lock);
}

/* The file's rules are replaced when it is another one or has changed. */
static void read_file(const char *path)
{
    struct stat now = {0};
    if (stat(path, &now) != 0)
        memset(&now, 0, sizeof now);
    if (now.st_ino == file_seen.st_ino && now.st_size == file_seen.st_size &&
        now.st_mtim.tv_sec == file_seen.st_mtim.tv_sec && now.st_mtim.tv_nsec == file_seen.st_mtim.tv_nsec)
        return;
    file_seen = now;
    int kept = 0;
    for (int i = 0; i < n_rules; i++)
        if (!rules[i].of_file)
            rules[kept++] = rules[i];
    n_rules = kept;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return;
    static char text[FILE_MAX];
    ssize_t n = read(fd, text, sizeof text - 1);
    close(fd);
    text[n > 0 ? n : 0] = '\0';
    reading_file = true;
    fake_pairs(text, add_locked);
    reading_file = false;
}

static bool applies(struct rule *rule, enum mla_fake_call call)
{
    bool entry_point = call < MLA_FAKE_kernel;
    if (rule->call != (int)call && !(rule->call == ANY_CALL && entry_point))
        return false;
    rule->seen++;
    return rule->nth == 0 || rule->seen == rule->nth || (rule->onwards && rule->seen > rule->nth);
}

CUresult fake_inject(enum mla_fake_call call)
{
    const struct fake_config *config = fake_config();
    struct rule hits[HITS_MAX];
    int n = 0;
    pthread_mutex_lock(&rules_lock);
    if (config->faults[0] != '\0')
        read_file(config->faults);
    for (int i = 0; i < n_rules; i++)
        if (applies(&rules[i], call) && n < HITS_MAX)
            hits[n++] = rules[i];
    pthread_mutex_unlock(&rules_lock);
    if (call >= MLA_FAKE_kernel) /* entry points are counted when they are called */
        FAKE_COUNT(calls[call], 1);

    for (int i = 0; i < n; i++) {
        switch (hits[i].action) {
        case KILL:
            kill(getpid(), SIGKILL);
            break;
        case DELAY:
            fake_sleep_ns(hits[i].delay_ns);
            break;
        case HOLD:
            while (access(hits[i].path, F_OK) != 0 && fake_lost() == CUDA_SUCCESS && !fake_leaving())
                fake_sleep_ns(HOLD_POLL_NS);
            break;
        case LOSE:
            fake_lose(hits[i].result);
            return hits[i].result;
        case FAIL:
            return hits[i].result;
        }
    }
    return CUDA_SUCCESS;
}

FAKE_API void mla_fake_rules(const char *text)
{
    fake_config();
    fake_rules_clear();
    fake_pairs(text, fake_rule_add);
}
