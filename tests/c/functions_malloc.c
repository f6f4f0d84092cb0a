/*
 * A program whose memory allocator is instrumented: the library calls the allocator, and the
 * allocator calls the library. Prints the number of calls of `work` in the parent and in the child.
 */
#include <hypertrace.h>

#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define PLAIN __attribute__((noinline, no_instrument_function))

enum { CALLS = 100, KEYS = 64, POOL = 64 << 20, ALIGNED = 256 };

static char pool[POOL] __attribute__((aligned(ALIGNED)));
static size_t used;

static void *take(size_t size) {
    const size_t whole = (size + 2 * ALIGNED - 1) / ALIGNED * ALIGNED;
    const size_t at = __atomic_fetch_add(&used, whole, __ATOMIC_RELAXED);
    /* `realloc` finds the size of the memory just before the memory. */
    memcpy(pool + at, &size, sizeof size);
    return pool + at + ALIGNED;
}

#if defined(__cplusplus)
extern "C" {
#endif

void *malloc(size_t size) { return take(size + ALIGNED); }

void *calloc(size_t count, size_t size) { return take(count * size + ALIGNED); }

void *realloc(void *old, size_t size) {
    char *const to = (char *)malloc(size);
    if (old != NULL) {
        size_t before = 0;
        memcpy(&before, (char *)old - ALIGNED, sizeof before);
        memcpy(to, old, before < size ? before : size);
    }
    return to;
}

int posix_memalign(void **to, size_t aligned, size_t size) {
    *to = malloc(size);
    return aligned > ALIGNED ? 12 : 0;
}

void *aligned_alloc(size_t aligned, size_t size) {
    return aligned > ALIGNED ? NULL : malloc(size);
}

void free(void *old) { (void)old; }

#if defined(__cplusplus)
}
#endif

__attribute__((noinline)) static void work(uint64_t n) { __asm__ volatile("" : : "r"(n)); }

PLAIN static void calls(const char *who) {
    for (uint64_t n = 0; n < CALLS; n++) {
        work(n);
    }
    HYPERTRACE_EVENT("worked", who);
}

/* The C library allocates memory for the values of later keys. */
PLAIN static void keys(void) {
    pthread_key_t key;
    for (int i = 0; i < KEYS; i++) {
        (void)pthread_key_create(&key, NULL);
    }
}

__attribute__((section(".preinit_array"), used)) static void (*const preinit)(void) = keys;

PLAIN int main(void) {
    calls("parent");
    const pid_t child = fork();
    if (child == 0) {
        calls("child");
        _exit(0);
    }
    int status = 1;
    if (child < 0 || waitpid(child, &status, 0) != child || status != 0) {
        return 1;
    }
    printf("%llu", (unsigned long long)(uintptr_t)&work);
    return 0;
}
