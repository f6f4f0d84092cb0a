/*
 * A library that is loaded before a program, and that traces each allocation of the program and of the
 * library itself.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <hypertrace.h>
#include <stddef.h>
#include <string.h>

static void *(*next_malloc)(size_t);

void *malloc(size_t size) {
    if (next_malloc == NULL) {
        void *const found = dlsym(RTLD_NEXT, "malloc");
        memcpy(&next_malloc, &found, sizeof next_malloc);
    }
    const uint64_t bytes = size;
    HYPERTRACE_EVENT("malloc", bytes);
    return next_malloc(size);
}
