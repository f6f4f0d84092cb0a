/* Rows of C. The program prints `ready`, and then answers each line of its stdin with the time of a turn in nanoseconds. */
#include <hypertrace.h>

#include <stdio.h>
#include <string.h>
#include <time.h>

enum {
    /* The rows of the ring use the same numbers. The ring holds two bursts, and a record has four words. */
    BURST = 50000,
    BURSTS = 10,
    WORDS = 2,
    TURNS = 20000000
};

/* Marks a function that the compiler must not instrument. Only one function has no such mark. */
#define PLAIN __attribute__((no_instrument_function)) static

/* Makes the compiler assume that `value` changes here. */
#define HIDE(value) __asm__ volatile("" : "+r"(value))

PLAIN double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec * 1e9 + (double)time.tv_nsec;
}

PLAIN __attribute__((noinline)) void pair(uint64_t a, uint64_t b) {
    HYPERTRACE_EVENT("c_pair", a, b);
}

PLAIN __attribute__((noinline)) void one(uint64_t a) { HYPERTRACE_EVENT("c_one", a); }

static __attribute__((noinline)) void called(uint64_t a, uint64_t b) {
    __asm__ volatile("" : : "r"(a), "r"(b));
}

/* Defines a function that times bursts of a statement. The function returns 0 if the ring had no room. */
#define BURSTS_OF(name, events, statement)                                                         \
    PLAIN double name(void) {                                                                      \
        double total = 0;                                                                          \
        for (int burst = 0; burst < BURSTS; burst++) {                                             \
            if (!hypertrace_wait_for_room((events) * (size_t)BURST, WORDS)) {                      \
                return 0;                                                                          \
            }                                                                                      \
            const double start = now();                                                            \
            for (uint64_t i = 0; i < BURST; i++) {                                                 \
                uint64_t b = i;                                                                    \
                HIDE(b);                                                                           \
                statement;                                                                         \
            }                                                                                      \
            total += now() - start;                                                                \
        }                                                                                          \
        return total / BURST / BURSTS;                                                             \
    }

BURSTS_OF(emit, 1, pair(i, b))
BURSTS_OF(emit_one, 1, one(b))
BURSTS_OF(call, 2, called(i, b))

PLAIN bool is_on(void) {
    bool computed = false;
    HYPERTRACE_EVENT("c_off", (a, (computed = true, UINT64_C(0))), (b, UINT64_C(0)));
    return computed;
}

/* Waits until the event is off. Returns false if it is still on after a second. */
PLAIN bool switched_off(void) {
    const struct timespec moment = {0, 1000000};
    for (int tries = 0; is_on(); tries++) {
        if (tries == 1000) {
            return false;
        }
        nanosleep(&moment, NULL);
        hypertrace_poll();
    }
    return true;
}

/* `disabled` and `calls_off` return 0 if the event is not switched off. */
PLAIN double disabled(void) {
    if (!switched_off()) {
        return 0;
    }
    const double start = now();
    for (uint64_t i = 0; i < TURNS; i++) {
        uint64_t a = i;
        HIDE(a);
        HYPERTRACE_EVENT("c_off", a, (b, a));
    }
    return (now() - start) / TURNS;
}

PLAIN double calls_off(void) {
    if (!switched_off()) {
        return 0;
    }
    const double start = now();
    for (uint64_t i = 0; i < TURNS; i++) {
        uint64_t b = i;
        HIDE(b);
        called(i, b);
    }
    return (now() - start) / TURNS;
}

PLAIN double empty(void) {
    const double start = now();
    for (uint64_t i = 0; i < TURNS; i++) {
        uint64_t a = i;
        HIDE(a);
    }
    return (now() - start) / TURNS;
}

__attribute__((no_instrument_function)) int main(void) {
    char text[512] = "";
    if (!hypertrace_open(NULL, text, sizeof text)) {
        fprintf(stderr, "%s\n", text);
        return 1;
    }
    pair(0, 0);
    printf("ready\n");
    while (fflush(stdout) == 0 && fgets(text, sizeof text, stdin) != NULL) {
        const double ns = strcmp(text, "emit\n") == 0        ? emit()
                          : strcmp(text, "one\n") == 0       ? emit_one()
                          : strcmp(text, "call\n") == 0      ? call()
                          : strcmp(text, "calls off\n") == 0 ? calls_off()
                          : strcmp(text, "disabled\n") == 0  ? disabled()
                                                             : empty();
        if (ns > 0) {
            printf("%.4f\n", ns);
        } else {
            printf("error: an event had no room, or was not switched off\n");
        }
    }
    return 0;
}
