/* A first process that runs one program several times. Each run has other addresses. */
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#define FIB 12

__attribute__((noinline)) long fib(int n)
{
	return n < 2 ? n : fib(n - 1) + fib(n - 2);
}

int main(int argc, char **argv)
{
	if (argc > 1) {
		fib(FIB);
		printf("fib at %lx\n", (unsigned long)fib);
		return 0;
	}
	for (int i = 0; i < 3; i++) {
		if (!fork()) {
			execl(argv[0], argv[0], "again", (char *)NULL);
			_exit(1);
		}
		wait(NULL);
	}
	return 0;
}
