/* The main thread ends before another thread, so the process lives until that thread ends. */
#include <hypertrace.h>

#include <pthread.h>
#include <stdio.h>
#include <time.h>

static void *thread(void *argument) {
    const struct timespec later = {0, 300000000};
    (void)argument;
    (void)nanosleep(&later, NULL);
    HYPERTRACE_EVENT("late");
    (void)printf("late\n");
    return NULL;
}

int main(void) {
    pthread_t other;
    HYPERTRACE_EVENT("early");
    if (pthread_create(&other, NULL, thread, NULL) != 0) {
        return 1;
    }
    pthread_exit(NULL);
}
