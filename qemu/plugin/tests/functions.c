/* A program that counts its own calls, for a function trace. */
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <termios.h>
#include <unistd.h>

static jmp_buf back;
static long calls_of_fib, calls_of_compare, calls_of_deep;

__attribute__((noinline)) long fib(int n)
{
	calls_of_fib++;
	return n < 2 ? n : fib(n - 1) + fib(n - 2);
}

__attribute__((noinline)) int compare(const void *a, const void *b)
{
	calls_of_compare++;
	return *(const int *)a - *(const int *)b;
}

__attribute__((noinline)) void deep(int n)
{
	calls_of_deep++;
	if (n == 0)
		longjmp(back, 1);
	/* The condition hides the end of the recursion from the compiler. */
	/* The addition after this call keeps the call from being a tail call. */
	if (calls_of_deep)
		deep(n - 1);
	calls_of_deep += n > 1000;
}

static long calls_of_leaf, calls_of_tail, calls_of_inner;

__attribute__((noinline)) void leaf(void)
{
	calls_of_leaf++;
}

/* Calls `leaf` with a tail call: the last instruction of `tail` jumps to `leaf`. */
__attribute__((noinline, optimize("O2"))) void tail(void)
{
	calls_of_tail++;
	leaf();
}

static unsigned hash(const char *name)
{
	unsigned hash = 0x811c9dc5;

	while (*name)
		hash = (hash ^ (unsigned char)*name++) * 0x01000193;
	return hash;
}

/* Stores to EMIT, as a reference point does. */
static void point(const char *name)
{
	static unsigned long emit;
	unsigned long value = (unsigned long)hash(name) << 32 | 1;

#ifdef __aarch64__
	asm volatile("movz xzr, #0x6874\n\tstr %0, [%1]" : : "r"(value), "r"(&emit) : "memory");
#else
	asm volatile("movq %0, 0x68547270(%1)"
		     :
		     : "r"(value), "r"((char *)&emit - 0x68547270)
		     : "memory");
#endif
}

__attribute__((noinline)) void inner(void)
{
	calls_of_inner++;
}

/* Calls the inner function ten times: seven calls are in the region, and three calls are outside of the region. */
__attribute__((noinline)) void outer(void)
{
	inner();
	point("batch_begin");
	for (volatile int i = 0; i < 7; i++)
		inner();
	point("batch_end");
	inner();
	inner();
	/* No tail call. */
	asm volatile("");
}

static void (*volatile by_pointer)(void) = tail;

int main(int argc, char **argv)
{
	int values[200];

	do {
		for (int i = 0; i < 200; i++)
			values[i] = i * 7919 % 211;
		qsort(values, 200, sizeof *values, compare);
		for (volatile int i = 0; i < 50; i++)
			if (!setjmp(back))
				deep(10);
		fib(22);
		for (volatile int i = 0; i < 30; i++)
			tail();
		for (volatile int i = 0; i < 20; i++)
			by_pointer();
		outer();
	} while (argc > 1 && argv[1][0] == 'f');
	printf("fib %ld\ncompare %ld\ndeep %ld\n", calls_of_fib, calls_of_compare, calls_of_deep);
	printf("leaf %ld\ntail %ld\ninner %ld\n", calls_of_leaf, calls_of_tail, calls_of_inner);
	/* When a machine's first process ends, the kernel panics. */
	/* So this process waits until its lines are printed, and then the lines of the panic follow. */
	fflush(stdout);
	tcdrain(STDOUT_FILENO);
	return 0;
}
