#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "kernels/host/internal.h"

#define FILE_BYTES_MAX (64u << 20)
#define FOLDERS_ABOVE  2

static bool has_manifest(const char *directory)
{
    char path[PATH_MAX];
    int n = snprintf(path, sizeof path, "%s/%s", directory, KERNELS_MANIFEST_NAME);
    return n > 0 && (size_t)n < sizeof path && access(path, R_OK) == 0;
}

static int take(const char *found, char *directory, size_t directory_bytes, char *why, size_t why_bytes)
{
    if (strlen(found) >= directory_bytes) {
        snprintf(why, why_bytes, "the name of the kernels' directory is too long: %.100s...", found);
        return -EINVAL;
    }
    memcpy(directory, found, strlen(found) + 1);
    return 0;
}

/* Folder of the running program; empty when it cannot be told. */
static void program_folder(char *folder, size_t bytes)
{
    ssize_t n = readlink("/proc/self/exe", folder, bytes - 1);
    folder[n > 0 ? n : 0] = '\0';
    char *slash = strrchr(folder, '/');
    if (slash)
        *slash = '\0';
}

int kernels_find_directory(const struct mla_kernels_options *options, char *directory, size_t directory_bytes,
                           char *why, size_t why_bytes)
{
    const char *given = options ? options->directory : NULL;
    if (!given)
        given = getenv("MLA_KERNELS_DIR");
    if (given && given[0] != '\0') {
        if (has_manifest(given))
            return take(given, directory, directory_bytes, why, why_bytes);
        snprintf(why, why_bytes, "no %s in %s", KERNELS_MANIFEST_NAME, given);
        return -ENOENT;
    }
    char folder[PATH_MAX - 16];
    char place[PATH_MAX];
    program_folder(folder, sizeof folder);
    char first[PATH_MAX];
    snprintf(first, sizeof first, "%s/kernels", folder);
    for (int i = 0; i <= FOLDERS_ABOVE && folder[0] != '\0'; i++) {
        snprintf(place, sizeof place, "%s/kernels", folder);
        if (has_manifest(place))
            return take(place, directory, directory_bytes, why, why_bytes);
        *strrchr(folder, '/') = '\0';
    }
    if (has_manifest(MLA_KERNELS_INSTALLED))
        return take(MLA_KERNELS_INSTALLED, directory, directory_bytes, why, why_bytes);
    snprintf(why, why_bytes,
             "no %s in %s, in \"kernels\" of the two folders above it, or in %s; MLA_KERNELS_DIR names another",
             KERNELS_MANIFEST_NAME, first, MLA_KERNELS_INSTALLED);
    return -ENOENT;
}

char *kernels_read_file(const char *path, size_t *bytes)
{
    FILE *file = fopen(path, "re");
    if (!file)
        return NULL;
    char *content = NULL;
    long size = fseek(file, 0, SEEK_END) == 0 ? ftell(file) : -1;
    if (size >= 0 && size < (long)FILE_BYTES_MAX && fseek(file, 0, SEEK_SET) == 0)
        content = malloc((size_t)size + 1);
    else
        errno = EFBIG;
    if (content && fread(content, 1, (size_t)size, file) != (size_t)size) {
        free(content);
        content = NULL;
        errno = EIO;
    }
    int error = errno;
    fclose(file);
    errno = error;
    if (content) {
        content[size] = '\0';
        *bytes = (size_t)size;
    }
    return content;
}
