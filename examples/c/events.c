/*
 * The same program in three places: in a VM with the device, natively under `hypertrace record`, and
 * under an emulator.
 *
 *     events THREADS EVENTS COMMITS POINTS
 *
 * Each thread records these numbers of events, commits and reference points alternately, and waits
 * rather than lose an event. Prints nothing if all is well, or if the program is not traced.
 */
#include <hypertrace.h>

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

/* Work of one thread, and its result. */
struct work {
    pthread_t id;
    uint32_t thread;
    uint64_t events, commits, points;
    bool traced;
    uint64_t failed;
};

/* Longest wait for a slow host, in seconds. */
enum { PATIENCE = 60 };

/* Words of the largest event below. */
enum { WORDS = 12 };

static void wait_for_room(struct work *work) {
    int left = PATIENCE;
    while (work->traced && !hypertrace_wait_for_room(1, WORDS)) {
        if (--left == 0) {
            work->failed++;
            return;
        }
    }
}

static void event(struct work *work, uint64_t n) {
    const uint32_t thread = work->thread;
    const int32_t minus = -(int32_t)(n % 1000);
    const double half = (double)n / 2;
    const bool odd = n % 2 == 1;
    char text[32];
    (void)snprintf(text, sizeof text, "event %llu", (unsigned long long)n);
    wait_for_room(work);
    HYPERTRACE_EVENT("c_event", thread, n, minus, half, odd, text, (where, (void *)0x1000));
}

static void commit(struct work *work, uint64_t n) {
    const uint32_t thread = work->thread;
    enum hypertrace_outcome outcome = HYPERTRACE_OUTCOME_FAILED;
    for (int left = PATIENCE; left > 0; left--) {
        HYPERTRACE_COMMIT(&outcome, "c_commit", thread, n);
        if (outcome != HYPERTRACE_OUTCOME_FULL) {
            break;
        }
    }
    work->failed += work->traced && outcome != HYPERTRACE_OUTCOME_RECORDED;
}

static void point(struct work *work, uint64_t n) {
    const uint32_t thread = work->thread;
    struct hypertrace_reply reply;
    HYPERTRACE_REFERENCE_POINT(&reply, "c_point", thread, n);
    work->failed += work->traced && reply.outcome != HYPERTRACE_OUTCOME_RECORDED;
}

static void *run(void *argument) {
    struct work *work = (struct work *)argument;
    const uint64_t most = work->events > work->commits ? work->events : work->commits;
    const uint64_t turns = most > work->points ? most : work->points;
    HYPERTRACE_REGION_BEGIN("c_work", work->thread);
    for (uint64_t turn = 0; turn < turns; turn++) {
        if (turn < work->events) {
            event(work, turn);
        }
        if (turn < work->commits) {
            commit(work, turn);
        }
        if (turn < work->points) {
            point(work, turn);
        }
    }
    wait_for_room(work);
    HYPERTRACE_REGION_END("c_work", work->thread);
    return NULL;
}

int main(int argc, char **argv) {
    if (argc != 5) {
        fprintf(stderr, "usage: %s THREADS EVENTS COMMITS POINTS\n", argv[0]);
        return 2;
    }
    const size_t threads = (size_t)strtoul(argv[1], NULL, 10);
    struct work *work = (struct work *)calloc(threads + 1, sizeof *work);
    if (work == NULL) {
        perror("calloc");
        return 1;
    }
    /* A program that only traces need not call this function, which reports why the program is not traced. */
    char why[1024];
    const bool traced = hypertrace_open(NULL, why, sizeof why);
    if (!traced) {
        fprintf(stderr, "not traced: %s\n", why);
    }

    size_t started = 0;
    for (; started < threads; started++) {
        struct work *one = &work[started];
        one->thread = (uint32_t)started;
        one->events = strtoull(argv[2], NULL, 10);
        one->commits = strtoull(argv[3], NULL, 10);
        one->points = strtoull(argv[4], NULL, 10);
        one->traced = traced;
        if (pthread_create(&one->id, NULL, run, one) != 0) {
            fprintf(stderr, "no thread %zu\n", started);
            break;
        }
    }
    uint64_t failed = threads - started;
    for (size_t i = 0; i < started; i++) {
        (void)pthread_join(work[i].id, NULL);
        failed += work[i].failed;
    }
    free(work);
    if (failed > 0) {
        fprintf(stderr, "%llu not recorded\n", (unsigned long long)failed);
    }
    return failed > 0;
}
