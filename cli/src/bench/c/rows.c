/* Rows of C: prints `ready`, then answers each line with the nanoseconds per turn. */
#include <hypertrace.h>

#include <stdio.h>
#include <string.h>
#include <time.h>

enum {
    /* The same numbers as in the rows of the ring: the ring holds two bursts, each record has four words. */
    BURST = 50000,
    BURSTS = 10,
    WORDS = 2,
    TURNS = 20000000
};

/* Makes the compiler assume that the value changes. */
#define HIDE(value) __asm__ volatile("" : "+r"(value))

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec * 1e9 + (double)time.tv_nsec;
}

static __attribute__((noinline)) void pair(uint64_t a, uint64_t b) {
    HYPERTRACE_EVENT("c_pair", a, b);
}

/* Returns 0 if there was no room. */
static double emit(void) {
    double total = 0;
    for (int burst = 0; burst < BURSTS; burst++) {
        if (!hypertrace_wait_for_room(BURST, WORDS)) {
            return 0;
        }
        const double start = now();
        for (uint64_t i = 0; i < BURST; i++) {
            uint64_t b = i;
            HIDE(b);
            pair(i, b);
        }
        total += now() - start;
    }
    return total / BURST / BURSTS;
}

static bool is_on(void) {
    bool computed = false;
    HYPERTRACE_EVENT("c_off", (a, (computed = true, UINT64_C(0))), (b, UINT64_C(0)));
    return computed;
}

/* Returns 0 if the event is still on after a second. */
static double disabled(void) {
    const struct timespec moment = {0, 1000000};
    for (int tries = 0; is_on(); tries++) {
        if (tries == 1000) {
            return 0;
        }
        nanosleep(&moment, NULL);
        hypertrace_poll();
    }
    const double start = now();
    for (uint64_t i = 0; i < TURNS; i++) {
        uint64_t a = i;
        HIDE(a);
        HYPERTRACE_EVENT("c_off", a, (b, a));
    }
    return (now() - start) / TURNS;
}

static double empty(void) {
    const double start = now();
    for (uint64_t i = 0; i < TURNS; i++) {
        uint64_t a = i;
        HIDE(a);
    }
    return (now() - start) / TURNS;
}

int main(void) {
    char text[512] = "";
    if (!hypertrace_open(NULL, text, sizeof text)) {
        fprintf(stderr, "%s\n", text);
        return 1;
    }
    pair(0, 0);
    printf("ready\n");
    while (fflush(stdout) == 0 && fgets(text, sizeof text, stdin) != NULL) {
        const double ns = strcmp(text, "emit\n") == 0       ? emit()
                          : strcmp(text, "disabled\n") == 0 ? disabled()
                                                            : empty();
        if (ns > 0) {
            printf("%.4f\n", ns);
        } else {
            printf("error: an event had no room, or was not switched off\n");
        }
    }
    return 0;
}
