/* What programs that look at the edges of a C library share: expectations, and buffers that end where memory ends. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

static int failed;

#define EXPECT(value, expected)                                                                    \
    do {                                                                                           \
        int got_ = (value);                                                                         \
        if (got_ != (expected)) {                                                                  \
            printf("line %d: %s is %d, not %d\n", __LINE__, #value, got_, (int)(expected));        \
            failed++;                                                                              \
        }                                                                                          \
    } while (0)

/* A buffer of `size` bytes: the byte behind it, and all before its page, are no memory. */
static char *buffer(int size) {
    char *pages = mmap(NULL, 3 * 65536, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (pages == MAP_FAILED || mprotect(pages + 65536, 65536, PROT_READ | PROT_WRITE) != 0)
        exit(9);
    char *start = pages + 2 * 65536 - size;
    memset(start, '#', size);
    return start;
}

/* A text of `length` bytes. */
static char *text(int length) {
    char *start = buffer(length + 1);
    memset(start, 'x', length);
    start[length] = '\0';
    return start;
}
