/* A signal handler emits the program's first event; later signals interrupt other events. */
#include <hypertrace.h>

#include <signal.h>
#include <stdio.h>
#include <sys/time.h>
#include <time.h>

static volatile sig_atomic_t handled = 0;

static void handler(int signal) {
    const int n = handled;
    HYPERTRACE_EVENT("handler", signal, n);
    handled = n + 1;
}

int main(void) {
    if (!hypertrace_open(NULL, NULL, 0)) {
        return 1;
    }
    struct sigaction action;
    memset(&action, 0, sizeof action);
    action.sa_handler = handler;
    (void)sigemptyset(&action.sa_mask);
    if (sigaction(SIGALRM, &action, NULL) != 0 || raise(SIGALRM) != 0) {
        return 1;
    }
    struct itimerval often;
    memset(&often, 0, sizeof often);
    often.it_interval.tv_usec = often.it_value.tv_usec = 100;
    if (setitimer(ITIMER_REAL, &often, NULL) != 0) {
        return 1;
    }
    const time_t end = time(NULL) + 20;
    uint64_t n = 0;
    while (handled < 200 && time(NULL) < end) {
        (void)hypertrace_wait_for_room(1, 1);
        HYPERTRACE_EVENT("amid", n);
        n++;
    }
    memset(&often, 0, sizeof often);
    (void)setitimer(ITIMER_REAL, &often, NULL);
    printf("%d %llu\n", (int)handled, (unsigned long long)n);
    return 0;
}
