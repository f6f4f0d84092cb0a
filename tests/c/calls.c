/* Emits events in known functions, for a session with a function trace. */
#include <hypertrace.h>
#include <stdio.h>

#define NOINLINE __attribute__((noinline))

/* A store to `sum` after a call prevents a tail call, so the caller is open until the call returns. */
static volatile uint64_t sum;

static NOINLINE void leaf(uint64_t n) {
    sum += n;
}

static NOINLINE void emits_event(uint64_t n) {
    leaf(n);
    HYPERTRACE_EVENT("ring_event", n);
    sum += n;
}

static NOINLINE void makes_point(uint64_t n) {
    leaf(n);
    HYPERTRACE_REFERENCE_POINT(NULL, "point", n);
    sum += n;
}

static NOINLINE void in_region(uint64_t n) {
    for (uint64_t i = 0; i < 50; i++) {
        leaf(n);
    }
    sum += n;
}

static NOINLINE void has_region(uint64_t n) {
    HYPERTRACE_REGION_BEGIN("batch", n);
    in_region(n);
    HYPERTRACE_REGION_END("batch", n);
    sum += n;
}

int main(void) {
    for (uint64_t n = 0; n < 20; n++) {
        emits_event(n);
        makes_point(n);
        has_region(n);
    }
    printf("%llu\n", (unsigned long long)sum);
    return 0;
}
