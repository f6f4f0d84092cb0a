/* A program that counts its own calls, for a function trace. */
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
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
	/* A compiler does not know that it ends, nor is it a tail call. */
	if (calls_of_deep)
		deep(n - 1);
	calls_of_deep += n > 1000;
}

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
	} while (argc > 1 && argv[1][0] == 'f');
	printf("fib %ld\ncompare %ld\ndeep %ld\n", calls_of_fib, calls_of_compare, calls_of_deep);
	return 0;
}
