/*
 * Events that the host switches off, and other events. Prints how often values of the switched-off events
 * were computed after the switch.
 */
#include <hypertrace.h>

#include <stdio.h>
#include <time.h>

static int computed;

static int value(int n) {
    computed++;
    return n;
}

static void events(int n) {
    HYPERTRACE_EVENT("kept", n);
    HYPERTRACE_EVENT("off", (n, value(n)));
    HYPERTRACE_EVENT("off_1234567890_1234567890_1234567890_1234567890_1234567890_12345",
                     (n, value(n)));
    HYPERTRACE_REGION_BEGIN("off", value(n));
    HYPERTRACE_EVENT("kept_1234567890_1234567890_1234567890_1234567890_1234567890_1234", n);
}

int main(void) {
    /* A call site may compute its first values, and the host needs a moment to switch the events off. */
    do {
        const struct timespec moment = {0, 1000000};
        (void)nanosleep(&moment, NULL);
        hypertrace_poll();
        computed = 0;
        events(0);
    } while (computed > 0);
    for (int n = 1; n <= 100; n++) {
        events(n);
    }
    printf("%d", computed);
    return 0;
}
