/*
 * A program that spends its time in known ways, in regions, and writes the kernel's accounts of its
 * thread to a file: the lines that tests/src/truth.rs parses.
 *
 *     spend FILE
 */
#define _GNU_SOURCE
#include <hypertrace.h>

#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <sched.h>
#include <semaphore.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include <x86intrin.h>

enum { ROUNDS = 40 };

/* Nanoseconds of the regions. */
static const uint64_t COMPUTE = 2000000, OTHERS = 1000000;

/* These structures match `Reading` and `Sample` in tests/src/truth.rs. */
struct reading {
    uint64_t ticks, waited, ran;
};

static FILE *file;
static int schedstat;

static uint64_t thread_time(void) {
    struct timespec now;
    (void)clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

static void waits(uint64_t *waited, uint64_t *turns) {
    char text[65];
    const ssize_t size = pread(schedstat, text, sizeof text - 1, 0);
    text[size > 0 ? size : 0] = 0;
    if (sscanf(text, "%*u %" SCNu64 " %" SCNu64, waited, turns) != 2) {
        perror("schedstat");
        exit(1);
    }
}

static struct reading now(void) {
    for (;;) {
        struct reading reading;
        uint64_t turns, waited, later;
        waits(&reading.waited, &turns);
        reading.ticks = __rdtsc();
        reading.ran = thread_time();
        waits(&waited, &later);
        if (turns == later && waited == reading.waited) {
            return reading;
        }
    }
}

static void compute(uint64_t ns) {
    const uint64_t until = thread_time() + ns;
    while (thread_time() < until) {
    }
}

static void pin(void) {
    cpu_set_t cpus, one;
    (void)sched_getaffinity(0, sizeof cpus, &cpus);
    int cpu = 0;
    while (!CPU_ISSET(cpu, &cpus)) {
        cpu++;
    }
    CPU_ZERO(&one);
    CPU_SET(cpu, &one);
    if (sched_setaffinity(0, sizeof one, &one) != 0) {
        perror("sched_setaffinity");
        exit(1);
    }
}

/* A thread that takes the CPU from the other thread, in turns. */
static sem_t turns;
static uint64_t competed;

static void *rival(void *argument) {
    (void)argument;
    pin();
    for (uint64_t turn = 1; turn <= ROUNDS; turn++) {
        while (sem_wait(&turns) != 0) {
        }
        compute(OTHERS);
        __atomic_store_n(&competed, turn, __ATOMIC_RELAXED);
    }
    return NULL;
}

static void note(const char *name, uint64_t id, const uint64_t inside[2], struct reading before,
                 struct reading after, const struct reading part[2]) {
    const struct reading all[4] = {before, after, part[0], part[1]};
    fprintf(file, "%s %" PRIu64 " %" PRIu64 " %" PRIu64, name, id, inside[0], inside[1]);
    for (int i = 0; i < 4; i++) {
        fprintf(file, " %" PRIu64 " %" PRIu64 " %" PRIu64, all[i].ticks, all[i].waited, all[i].ran);
    }
    fprintf(file, "\n");
}

int main(int argc, char **argv) {
    pthread_t thread;
    file = argc == 2 ? fopen(argv[1], "w") : NULL;
    schedstat = open("/proc/thread-self/schedstat", O_RDONLY);
    if (file == NULL || schedstat < 0) {
        perror("spend");
        return 1;
    }
    pin();
    (void)sem_init(&turns, 0, 0);
    if (pthread_create(&thread, NULL, rival, NULL) != 0) {
        return 1;
    }
    for (uint64_t round = 1; round <= ROUNDS; round++) {
        uint64_t inside[2];
        struct reading part[2];

        struct reading before = now();
        HYPERTRACE_REGION_BEGIN("computed", round);
        inside[0] = __rdtsc();
        compute(COMPUTE);
        inside[1] = __rdtsc();
        HYPERTRACE_REGION_END("computed", round);
        part[0] = part[1] = before;
        note("computed", round, inside, before, now(), part);

        before = now();
        HYPERTRACE_REGION_BEGIN("slept", round);
        inside[0] = __rdtsc();
        part[0] = now();
        const struct timespec time = {0, (long)OTHERS};
        (void)nanosleep(&time, NULL);
        part[1] = now();
        inside[1] = __rdtsc();
        HYPERTRACE_REGION_END("slept", round);
        note("slept", round, inside, before, now(), part);

        before = now();
        HYPERTRACE_REGION_BEGIN("competed", round);
        inside[0] = __rdtsc();
        (void)sem_post(&turns);
        while (__atomic_load_n(&competed, __ATOMIC_RELAXED) < round) {
            _mm_pause();
        }
        inside[1] = __rdtsc();
        HYPERTRACE_REGION_END("competed", round);
        part[0] = part[1] = before;
        note("competed", round, inside, before, now(), part);
    }
    (void)pthread_join(thread, NULL);
    return fclose(file) != 0;
}
