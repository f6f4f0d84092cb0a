/* Fires one event of LTTng-UST as often as its argument says; prints the nanoseconds per event. */
#define LTTNG_UST_TRACEPOINT_CREATE_PROBES
#define LTTNG_UST_TRACEPOINT_DEFINE
#include "lttng.h"
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

/* A separate function, like the generated functions of declared events. */
static __attribute__((noinline)) void pair(uint64_t a, uint64_t b)
{
	lttng_ust_tracepoint(hypertrace_bench, pair, a, b);
}

static double now(void)
{
	struct timespec time;

	clock_gettime(CLOCK_MONOTONIC, &time);
	return time.tv_sec * 1e9 + time.tv_nsec;
}

int main(int argc, char **argv)
{
	uint64_t turns = argc > 1 ? strtoull(argv[1], NULL, 10) : 1;
	double start;

	/* The first event sets up the thread's buffers. */
	pair(0, 0);
	start = now();
	for (uint64_t i = 0; i < turns; i++) {
		uint64_t b = i;

		__asm__ volatile("" : "+r"(b));
		pair(i, b);
	}
	printf("%.3f\n", (now() - start) / turns);
	return 0;
}
