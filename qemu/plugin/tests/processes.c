/* A program for tests of function traces. The program has processes, threads, its own stacks, and code that changes. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <ucontext.h>
#include <unistd.h>

__attribute__((noinline)) void work(void)
{
	asm volatile("");
}

static void repeat(int times)
{
	for (volatile int i = 0; i < times; i++)
		work();
}

static void *thread(void *argument)
{
	(void)argument;
	repeat(1000);
	return NULL;
}

static void run_threads(void)
{
	pthread_t threads[8];

	/* There are several rounds, so that a later thread may get the id of a thread that has ended. */
	for (int round = 0; round < 3; round++) {
		for (int i = 0; i < 8; i++)
			pthread_create(&threads[i], NULL, thread, NULL);
		for (int i = 0; i < 8; i++)
			pthread_join(threads[i], NULL);
	}
}

static void run_children(void)
{
	for (int i = 0; i < 3; i++) {
		pid_t child = fork();

		if (!child) {
			/* This child makes a child of its own. */
			if (!fork())
				_exit(0);
			wait(NULL);
			repeat(5000);
			_exit(0);
		}
		repeat(100);
		waitpid(child, NULL, 0);
	}
}

/* Calls code that this function rewrites before each call. */
/* In each version of the code, a different number of instructions comes before the call and the return. */
static void run_changing_code(void)
{
	unsigned char *code = mmap(NULL, 4096, PROT_READ | PROT_WRITE | PROT_EXEC,
				   MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	for (int i = 0; i < 500; i++) {
		/* nop (length times); push %rax; call *%rdi; pop %rax; ret */
		int length = i % 16;

		memset(code, 0x90, length);
		memcpy(code + length, "\x50\xff\xd7\x58\xc3", 5);
		((void (*)(void (*)(void)))code)(work);
	}
}

__attribute__((noinline)) static long deep(int n)
{
	work();
	return n == 0 ? 0 : 1 + deep(n - 1) + (n > 100000);
}

static ucontext_t back;

static void on_its_stack(void)
{
	work();
	setcontext(&back);
}

/* Uses more stacks than the plugin remembers at the same time. On each stack, one function never returns. */
static void run_stacks(void)
{
	for (int i = 0; i < 1000; i++) {
		ucontext_t *there = malloc(sizeof *there);
		size_t bytes = 1 << 20;

		getcontext(there);
		there->uc_stack.ss_sp = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
					     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
		there->uc_stack.ss_size = bytes;
		there->uc_link = NULL;
		makecontext(there, on_its_stack, 0);
		swapcontext(&back, there);
	}
}

static long counter;

__attribute__((noinline)) void count(void)
{
	__atomic_add_fetch(&counter, 1, __ATOMIC_SEQ_CST);
}

/* With a second thread, QEMU executes atomic instructions by its own functions. */
/*
 * For the stores of these instructions, QEMU 7.2 then calls the plugin as if an earlier call had made the
 * stores.
 */
__attribute__((noinline)) void run_atomics(void)
{
	pthread_t other;

	pthread_create(&other, NULL, thread, NULL);
	for (int i = 0; i < 3000; i++)
		count();
	pthread_join(other, NULL);
	printf("%ld\n", counter);
}

/* Closes all descriptors, as daemons do, and opens its own files, which get the numbers of the closed descriptors. */
static void run_close(const char *folder)
{
	char path[4096];
	int files[64];
	struct stat file;

	for (int i = 3; i < 256; i++)
		close(i);
	for (int i = 0; i < 64; i++) {
		snprintf(path, sizeof path, "%s/file%d", folder, i);
		files[i] = open(path, O_RDWR | O_CREAT | O_TRUNC, 0600);
		if (files[i] < 0 || write(files[i], "precious", 8) != 8)
			abort();
	}
	repeat(100000);
	for (int i = 0; i < 64; i++)
		if (fstat(files[i], &file) || file.st_size != 8)
			abort();
}

/* Changes the current directory, and only then starts a thread that has records. */
static void run_elsewhere(void)
{
	pthread_t other;

	if (chdir("/"))
		abort();
	pthread_create(&other, NULL, thread, NULL);
	pthread_join(other, NULL);
}

/* Runs with a limit on the size of files that the process may make. */
static void run_limited(void)
{
	const struct rlimit most = { 4096, 4096 };

	if (setrlimit(RLIMIT_FSIZE, &most))
		abort();
	repeat(100000);
}

/* Sends a signal to the program's own process while the only thread of the program blocks the signal. */
static void run_blocked(void)
{
	sigset_t set;
	siginfo_t taken;

	sigemptyset(&set);
	sigaddset(&set, SIGUSR1);
	sigprocmask(SIG_BLOCK, &set, NULL);
	kill(getpid(), SIGUSR1);
	repeat(1000);
	if (sigwaitinfo(&set, &taken) != SIGUSR1)
		abort();
}

int main(int argc, char **argv)
{
	const char *what = argc > 1 ? argv[1] : "";

	if (!strcmp(what, "threads"))
		run_threads();
	if (!strcmp(what, "fork"))
		run_children();
	if (!strcmp(what, "code"))
		run_changing_code();
	if (!strcmp(what, "atomics"))
		run_atomics();
	if (!strcmp(what, "deep"))
		printf("%ld\n", deep(5000));
	if (!strcmp(what, "stacks"))
		run_stacks();
	if (!strcmp(what, "close"))
		run_close(argv[2]);
	if (!strcmp(what, "elsewhere"))
		run_elsewhere();
	if (!strcmp(what, "limited"))
		run_limited();
	if (!strcmp(what, "blocked"))
		run_blocked();
	if (!strcmp(what, "exec")) {
		repeat(700);
		execl("/bin/true", "true", NULL);
	}
	return 0;
}
