/* Main of a fuzz target without libFuzzer: runs every file of a folder through it once. Exit 1 when there is none. */
#include <dirent.h>
#include <errno.h>
#include <string.h>

#include "tests/fuzz/fuzz.h"

static int replay(const char *folder, const char *name)
{
    char path[4096];
    if (snprintf(path, sizeof(path), "%s/%s", folder, name) >= (int)sizeof(path)) {
        fprintf(stderr, "%s: name too long\n", name);
        return 1;
    }
    FILE *f = fopen(path, "rb");
    if (!f || fseek(f, 0, SEEK_END) != 0) {
        fprintf(stderr, "%s: %s\n", path, strerror(errno));
        if (f)
            fclose(f);
        return 1;
    }
    long end = ftell(f);
    size_t size = end > 0 ? (size_t)end : 0;
    rewind(f);
    /* Of the exact size, so that a sanitizer sees a read past the end. */
    uint8_t *data = malloc(size ? size : 1);
    int rc = 1;
    if (data && fread(data, 1, size, f) == size) {
        /* Named before it runs: a crash then says which file it was. */
        printf("%s\n", name);
        fflush(stdout);
        rc = LLVMFuzzerTestOneInput(data, size);
    }
    free(data);
    fclose(f);
    return rc;
}

int main(int argc, char **argv)
{
    if (argc != 2) {
        fprintf(stderr, "usage: %s FOLDER\n", argv[0]);
        return 2;
    }
    DIR *d = opendir(argv[1]);
    if (!d) {
        fprintf(stderr, "%s: %s\n", argv[1], strerror(errno));
        return 1;
    }
    unsigned n = 0;
    int failed = 0;
    for (struct dirent *e; (e = readdir(d));) {
        if (e->d_name[0] == '.')
            continue;
        failed |= replay(argv[1], e->d_name);
        n++;
    }
    closedir(d);
    printf("%u inputs\n", n);
    if (n == 0)
        fprintf(stderr, "%s: the corpus is empty\n", argv[1]);
    return failed || n == 0;
}
