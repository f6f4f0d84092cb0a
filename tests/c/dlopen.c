/* Loads a library that traces, several times; the program itself knows nothing of it. */
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

int main(int argc, char **argv) {
    for (uint64_t round = 0; argc > 1 && round < 3; round++) {
        void *const library = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL);
        if (library == NULL) {
            fprintf(stderr, "%s\n", dlerror());
            return 1;
        }
        void *const found = dlsym(library, "plugin_events");
        void (*events)(uint64_t) = NULL;
        memcpy(&events, &found, sizeof events);
        events(round);
        if (dlclose(library) != 0) {
            return 1;
        }
    }
    return 0;
}
