/*
 * Calls functions that the compiler instruments, and counts their calls. Prints a line NAME ADDRESS
 * CALLS RETURNS for each function. The argument says how the functions are called.
 */
#include <hypertrace.h>

#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

/* The compiler does not instrument functions with this attribute. */
#define PLAIN __attribute__((noinline, no_instrument_function))
/* The compiler may inline or clone functions without this attribute. */
#define TRACED __attribute__((noinline))

enum {
    THREADS = 3,
    NUMBERS = 300,
    JUMPS = 10,
    DEPTH = 7,
    /* Number of events in a round: two for each call. A ring holds several rounds. */
    ROUND = 12000,
    SIGNALS = 20
};

struct function {
    const char *name;
    uintptr_t address;
    uint64_t calls;
    uint64_t returns;
};

static uint64_t fib(uint64_t n);
static int compare(const void *a, const void *b);
static void *thread(void *argument);
static void dive(uint64_t depth);
static void handler(int number);
static void constructed(void);
static void first(void);

enum { FIB, COMPARE, THREAD, DIVE, HANDLER, CONSTRUCTED, FIRST, FUNCTIONS };

#define FUNCTION(name) {#name, (uintptr_t)&name, 0, 0}
static struct function functions[FUNCTIONS] = {
    FUNCTION(fib),         FUNCTION(compare), FUNCTION(thread), FUNCTION(dive),
    FUNCTION(handler),     FUNCTION(constructed), FUNCTION(first),
};

#define CALLED(which) (void)__atomic_fetch_add(&functions[which].calls, 1, __ATOMIC_RELAXED)
#define RETURNS(which) (void)__atomic_fetch_add(&functions[which].returns, 1, __ATOMIC_RELAXED)

static jmp_buf jump;
static volatile sig_atomic_t signals;
static volatile bool is_left_by_a_jump = true;

TRACED static uint64_t fib(uint64_t n) {
    CALLED(FIB);
    const uint64_t sum = n < 2 ? n : fib(n - 1) + fib(n - 2);
    RETURNS(FIB);
    return sum;
}

TRACED static int compare(const void *a, const void *b) {
    CALLED(COMPARE);
    uint32_t left = 0;
    uint32_t right = 0;
    memcpy(&left, a, sizeof left);
    memcpy(&right, b, sizeof right);
    RETURNS(COMPARE);
    return (left > right) - (left < right);
}

/* Waits until the ring has room, so that no event is lost. */
PLAIN static void room(void) {
    (void)hypertrace_wait_for_room(ROUND, 1);
}

PLAIN static void calls(void) {
    uint32_t numbers[NUMBERS];
    uint32_t random = 1;
    for (int i = 0; i < NUMBERS; i++) {
        random = random * 1664525 + 1013904223;
        numbers[i] = random;
    }
    room();
    qsort(numbers, NUMBERS, sizeof numbers[0], compare);
    for (int i = 0; i < 3; i++) {
        room();
        if (fib(15) != 610) {
            exit(2);
        }
    }
}

TRACED static void *thread(void *argument) {
    CALLED(THREAD);
    calls();
    RETURNS(THREAD);
    return argument;
}

/* Leaves functions with a jump. */
TRACED static void dive(uint64_t depth) {
    CALLED(DIVE);
    if (depth > 0) {
        dive(depth - 1);
    } else if (is_left_by_a_jump) {
        longjmp(jump, 1);
    }
    RETURNS(DIVE);
}

TRACED static void handler(int number) {
    CALLED(HANDLER);
    (void)number;
    signals = signals + 1;
    (void)fib(3);
    RETURNS(HANDLER);
}

/* Before `main`. */
__attribute__((constructor)) TRACED static void constructed(void) {
    CALLED(CONSTRUCTED);
    RETURNS(CONSTRUCTED);
}

/* This function is called before the library is open. */
TRACED static void first(void) {
    CALLED(FIRST);
    RETURNS(FIRST);
}

PLAIN static void before_all(void) {
    first();
}

__attribute__((section(".preinit_array"), used)) static void (*const preinit)(void) = before_all;

PLAIN static void threads(void) {
    pthread_t all[THREADS];
    for (int i = 0; i < THREADS; i++) {
        if (pthread_create(&all[i], NULL, thread, NULL) != 0) {
            exit(2);
        }
    }
    calls();
    for (int i = 0; i < THREADS; i++) {
        (void)pthread_join(all[i], NULL);
    }
}

PLAIN static void jumps(void) {
    for (volatile int i = 0; i < JUMPS; i++) {
        if (setjmp(jump) == 0) {
            dive(DEPTH - 1);
        }
    }
}

PLAIN static void forks(void) {
    calls();
    const pid_t child = fork();
    if (child == 0) {
        /* The child begins to count at 0, because it has not made the calls of its parent. */
        for (int i = 0; i < FUNCTIONS; i++) {
            functions[i].calls = functions[i].returns = 0;
        }
        calls();
        return;
    }
    int status = 1;
    if (child < 0 || waitpid(child, &status, 0) != child || status != 0) {
        exit(2);
    }
}

PLAIN static void interrupted(void) {
    struct sigaction action;
    memset(&action, 0, sizeof action);
    action.sa_handler = handler;
    const struct itimerval often = {{0, 1000}, {0, 1000}};
    const struct itimerval never = {{0, 0}, {0, 0}};
    (void)sigaction(SIGALRM, &action, NULL);
    (void)setitimer(ITIMER_REAL, &often, NULL);
    while (signals < SIGNALS) {
        room();
        (void)fib(10);
    }
    (void)setitimer(ITIMER_REAL, &never, NULL);
}

PLAIN int main(int argc, char **argv) {
    const char *const how = argc > 1 ? argv[1] : "";
    if (strcmp(how, "threads") == 0) {
        threads();
    } else if (strcmp(how, "jumps") == 0) {
        jumps();
    } else if (strcmp(how, "forks") == 0) {
        forks();
    } else if (strcmp(how, "interrupted") == 0) {
        interrupted();
    } else {
        return 2;
    }
    /* The library's own header is not instrumented. */
    HYPERTRACE_EVENT("done", how, (half, 0.5), (minus, -1));
    for (int i = 0; i < FUNCTIONS; i++) {
        const struct function *const it = &functions[i];
        printf("%d %s %llu %llu %llu\n", (int)getpid(), it->name, (unsigned long long)it->address,
               (unsigned long long)it->calls, (unsigned long long)it->returns);
    }
    return 0;
}
