/*
 * A library. With PROGRAM, this file is a program that calls the library through stubs and through a pointer.
 */
#ifdef PROGRAM
#include <stdio.h>

void shared_work(void);
void shared_outer(void);

int main(void)
{
	void (*volatile by_pointer)(void) = shared_work;

	for (volatile int i = 0; i < 100; i++)
		shared_work();
	for (volatile int i = 0; i < 10; i++)
		by_pointer();
	for (volatile int i = 0; i < 5; i++)
		shared_outer();
	printf("shared_work at %p\n", (void *)shared_work);
	return 0;
}
#else
void shared_work(void)
{
	asm volatile("");
}

void shared_outer(void)
{
	shared_work();
	asm volatile("");
}
#endif
