/*
 * Loads and unloads a library that traces, several times; the program itself knows nothing of tracing. In
 * each round, a new thread loads and unloads the library, and then ends. Thus no data of a living thread
 * keeps the library loaded.
 */
#include <dlfcn.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

static const char *path;

static void *load(void *argument) {
    const uint64_t *const round = (const uint64_t *)argument;
    void *const library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (library == NULL) {
        fprintf(stderr, "%s\n", dlerror());
        return argument;
    }
    void *const found = dlsym(library, "plugin_events");
    void (*events)(uint64_t) = NULL;
    memcpy(&events, &found, sizeof events);
    events(*round);
    return dlclose(library) == 0 ? NULL : argument;
}

int main(int argc, char **argv) {
    if (argc != 2) {
        return 2;
    }
    path = argv[1];
    for (uint64_t round = 0; round < 3; round++) {
        pthread_t thread;
        void *failed = NULL;
        if (pthread_create(&thread, NULL, load, &round) != 0 ||
            pthread_join(thread, &failed) != 0 || failed != NULL) {
            return 1;
        }
        /* The library's own thread runs on meanwhile. */
        const struct timespec pause = {0, 50000000};
        (void)nanosleep(&pause, NULL);
    }
    return 0;
}
