/* Loaded into a daemon by LD_PRELOAD: counts what it takes from the heap, in the first word of the file that
 * MLA_TEST_ALLOCATIONS names. Takes glibc's own names for what it stands in front of, so that nothing has to be looked
 * up while the program starts. The fake driver says where its code lies (mla_count_alloc_but): what is called from
 * there does not count. */
#include <fcntl.h>
#include <malloc.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#define PUBLIC __attribute__((visibility("default")))

void mla_count_alloc_but(const void *first, const void *end);

extern void *__libc_malloc(size_t bytes);
extern void *__libc_calloc(size_t n, size_t bytes);
extern void *__libc_realloc(void *memory, size_t bytes);
extern void *__libc_memalign(size_t align, size_t bytes);

static uint64_t nowhere;
static uint64_t *count = &nowhere;
static const char *but_first, *but_end;

PUBLIC void mla_count_alloc_but(const void *first, const void *end)
{
    but_first = first;
    but_end = end;
}

__attribute__((constructor)) static void open_count(void)
{
    const char *path = getenv("MLA_TEST_ALLOCATIONS");
    int fd = path != NULL ? open(path, O_RDWR | O_CLOEXEC) : -1;
    void *word = fd >= 0 ? mmap(NULL, sizeof(*count), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0) : MAP_FAILED;
    if (word != MAP_FAILED)
        count = word;
    if (fd >= 0)
        close(fd);
}

static void add(const void *caller)
{
    if ((const char *)caller >= but_first && (const char *)caller < but_end)
        return;
    __atomic_fetch_add(count, 1, __ATOMIC_RELAXED);
}

PUBLIC void *malloc(size_t bytes)
{
    add(__builtin_return_address(0));
    return __libc_malloc(bytes);
}

PUBLIC void *calloc(size_t n, size_t bytes)
{
    add(__builtin_return_address(0));
    return __libc_calloc(n, bytes);
}

PUBLIC void *realloc(void *memory, size_t bytes)
{
    add(__builtin_return_address(0));
    return __libc_realloc(memory, bytes);
}

PUBLIC void *memalign(size_t align, size_t bytes)
{
    add(__builtin_return_address(0));
    return __libc_memalign(align, bytes);
}

PUBLIC void *aligned_alloc(size_t align, size_t bytes)
{
    add(__builtin_return_address(0));
    return __libc_memalign(align, bytes);
}

PUBLIC int posix_memalign(void **memory, size_t align, size_t bytes)
{
    add(__builtin_return_address(0));
    *memory = __libc_memalign(align, bytes);
    return *memory == NULL ? 12 : 0; /* ENOMEM */
}
