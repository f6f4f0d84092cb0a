/*
 * Maps a device or a segment for guest.c, in place of a kernel:
 *
 *     bare FUNCTION|SEGMENT CLIENT EVENTS POINTS
 *
 * FUNCTION is the folder of the PCI function in sysfs.
 */
#include <fcntl.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>

struct result {
    uint64_t dropped, unanswered, host_time;
};

bool trace(void *const bars[4], uint32_t number, uint64_t events, uint64_t points,
           struct result *result);

static void *map(const char *path) {
    struct stat file;
    const int descriptor = open(path, O_RDWR);
    if (descriptor < 0 || fstat(descriptor, &file) != 0) {
        perror(path);
        exit(1);
    }
    void *at = mmap(NULL, (size_t)file.st_size, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
    if (at == MAP_FAILED) {
        perror(path);
        exit(1);
    }
    return at;
}

static void *map_resource(const char *function, const char *name) {
    char path[512];
    (void)snprintf(path, sizeof path, "%s/%s", function, name);
    return map(path);
}

int main(int argc, char **argv) {
    struct stat place;
    if (argc != 5 || stat(argv[1], &place) != 0) {
        fprintf(stderr, "usage: %s FUNCTION|SEGMENT CLIENT EVENTS POINTS\n", argv[0]);
        return 2;
    }
    void *bars[4] = {NULL, NULL, NULL, NULL};
    if (S_ISDIR(place.st_mode)) {
        bars[0] = map_resource(argv[1], "resource0");
        bars[1] = map_resource(argv[1], "resource1_wc");
        bars[2] = map_resource(argv[1], "resource2");
        bars[3] = map_resource(argv[1], "resource4_wc");
    } else {
        bars[0] = map(argv[1]);
    }
    struct result result;
    if (!trace(bars, (uint32_t)strtoul(argv[2], NULL, 10), strtoull(argv[3], NULL, 10),
               strtoull(argv[4], NULL, 10), &result)) {
        printf("no device\n");
        return 1;
    }
    printf("dropped %" PRIu64 ", unanswered %" PRIu64 "\n", result.dropped, result.unanswered);
    return 0;
}
