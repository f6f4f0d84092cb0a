/* Calls a function built with -pg as often as its argument says; prints the nanoseconds per call. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

static __attribute__((noinline)) void pair(uint64_t a, uint64_t b)
{
	__asm__ volatile("" : : "r"(a), "r"(b));
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

	pair(0, 0);
	start = now();
	for (uint64_t i = 0; i < turns; i++)
		pair(i, i);
	printf("%.3f\n", (now() - start) / turns);
	return 0;
}
