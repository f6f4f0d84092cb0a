/* Makes this many allocations. */
#include <stdlib.h>

int main(int argc, char **argv) {
    for (int left = argc == 2 ? atoi(argv[1]) : 0; left > 0; left--) {
        void *volatile at = malloc(77);
        free(at);
    }
    return 0;
}
