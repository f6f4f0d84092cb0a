/*
 * A program whose functions emit events, in a region to which a function trace can be limited:
 *
 *     steps TIMES
 */
#include <hypertrace.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

static volatile uint64_t sum;

__attribute__((noinline)) static void step(uint64_t n) {
    sum += n;
    HYPERTRACE_EVENT("inside", n);
    sum += n;
}

__attribute__((noinline)) static void steps(uint64_t times) {
    for (uint64_t n = 0; n < times; n++) {
        step(n);
    }
}

int main(int argc, char **argv) {
    const uint64_t times = argc > 1 ? strtoull(argv[1], NULL, 10) : 1;
    char error[200];
    if (!hypertrace_open(NULL, error, sizeof error)) {
        printf("no channel: %s\n", error);
        return 1;
    }
    steps(times);
    HYPERTRACE_REFERENCE_POINT(NULL, "batch_begin", (id, UINT64_C(1)));
    steps(times);
    HYPERTRACE_REFERENCE_POINT(NULL, "batch_end", (id, UINT64_C(1)));
    steps(times);
    return 0;
}
