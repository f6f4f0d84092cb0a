/* A guest of the plugin that does not use the library: the program itself maps the segment, and stores to registers as
 * the library does. Usage: raw ACT [ARGUMENT..]. The program prints each result as a line on stdout. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

enum { EMIT = 0, LEASE = 8, END = 16, NAME_HASH = 77, ID = 1000 };

static char *segment;
static char *control, *rings;
static uint64_t relays, clients, stride, client_at, segment_size;

#define CHECK(what) do { if (!(what)) { printf("failed: %s, line %d\n", #what, __LINE__); exit(1); } } while (0)

static uint64_t config(int offset) { return *(uint64_t *)(segment + offset); }

/* Returns the size of a region of which `used` bytes are used. */
static uint64_t region(uint64_t used)
{
	uint64_t size = 0x10000;
	while (size < used)
		size *= 2;
	return size;
}

static void map(void)
{
	int file = open(getenv("HYPERTRACE_SEGMENT"), O_RDWR | O_CLOEXEC);
	CHECK(file >= 0);
	segment_size = lseek(file, 0, SEEK_END);
	segment = mmap(NULL, segment_size, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
	CHECK(segment != MAP_FAILED);
	close(file);
	clients = config(0x00);
	relays = config(0x68);
	stride = 0x2000 + config(0x70) + config(0x78);
	uint64_t registers = (clients * 8 + 4095) / 4096 * 4096 + 4096;
	control = segment + 0x10000 + region(clients * config(0x08) * 64) + registers;
	rings = control - registers + region(registers + clients * 4096);
	client_at = 4096;
}

static void marked_store(void *to, uint64_t value)
{
#if defined(__x86_64__)
	__asm__ volatile("movq %1, 0x68547270(%0)" : : "r"((char *)to - 0x68547270), "r"(value) : "memory");
#elif defined(__aarch64__)
	__asm__ volatile("movz xzr, #0x6874\n\tstr %1, [%0]" : : "r"(to), "r"(value) : "memory");
#endif
}

static void store_with_sib(void *to, uint64_t value)
{
#if defined(__x86_64__)
	register char *base __asm__("r12") = (char *)to - 0x68547270;
	__asm__ volatile("movq %1, 0x68547270(%0)" : : "r"(base), "r"(value) : "memory");
#else
	marked_store(to, value);
#endif
}

static void *reg(uint64_t client, int which) { return control + client * 4096 + which; }
static volatile uint64_t *guest(uint64_t client) { return (void *)(rings + client_at + client * stride); }
static volatile uint64_t *host(uint64_t client) { return guest(client) + 512; }

/* Fills the client's slot with a point of two words. */
static void slot(uint64_t client, uint32_t seq, uint64_t a, uint64_t b)
{
	volatile uint64_t *slot = guest(client) + 0x80;
	slot[0] = seq | (uint64_t)ID << 32;
	slot[1] = NAME_HASH;
	slot[2] = 5000 + seq;
	slot[3] = 2;
	slot[4] = a;
	slot[5] = b;
	__sync_synchronize();
}

static int is_answered(uint64_t client, uint32_t seq)
{
	__sync_synchronize();
	return (uint32_t)host(client)[16] == seq;
}

static void point(uint64_t client, uint32_t seq, uint64_t a, uint64_t b, void store(void *, uint64_t))
{
	slot(client, seq, a, b);
	store(reg(client, EMIT), seq);
	CHECK(is_answered(client, seq));
	CHECK(host(client)[16] >> 32 == 0);
	CHECK(host(client)[17] != 0);
}

static uint32_t points_each;

static void *points(void *index)
{
	uint64_t client = relays + (uintptr_t)index;
	marked_store(reg(client, LEASE), 0x1234 + client);
	CHECK(host(client)[8] == 0x1234 + client);
	for (uint32_t n = 1; n <= points_each; n++)
		point(client, n, client, n, n % 2 ? marked_store : store_with_sib);
	/* The number comes from a bare system call, because gettid() may return a number that the emulator has made up. */
	printf("client %d tid %ld\n", (int)client, (long)syscall(SYS_gettid));
	return NULL;
}

static void threads(int count)
{
	pthread_t thread[64];
	for (intptr_t i = 1; i < count; i++)
		CHECK(pthread_create(&thread[i], NULL, points, (void *)i) == 0);
	points((void *)0);
	for (int i = 1; i < count; i++)
		pthread_join(thread[i], NULL);
}

/* Runs threads one after the other, so that a thread begins when the previous thread has ended. */
static void in_turns(int count)
{
	for (intptr_t i = 0; i < count; i++) {
		pthread_t thread;
		CHECK(pthread_create(&thread, NULL, points, (void *)i) == 0);
		pthread_join(thread, NULL);
	}
}

static void forks(void)
{
	int status;
	points((void *)0);
	fflush(stdout);
	pid_t child = fork();
	if (child == 0) {
		points((void *)1);
		fflush(stdout);
		_exit(0);
	}
	printf("child %d\n", (int)child);
	point(relays, points_each + 1, relays, points_each + 1, marked_store);
	CHECK(waitpid(child, &status, 0) == child && status == 0);
	point(relays, points_each + 2, relays, points_each + 2, marked_store);
}

/*
 * Makes points through a first and a second mapping of the file, and, after the first mapping is removed,
 * through the second.
 */
static void elsewhere(void)
{
	points((void *)0);
	char *old = segment;
	map();
	CHECK(segment != old);
	points((void *)1);
	CHECK(munmap(old, segment_size) == 0);
	points((void *)2);
}

static void outside(void)
{
	uint64_t *own = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	uint64_t on_stack = 0;
	for (int n = 1; n <= 1000; n++) {
		marked_store(own, n);
		marked_store(&on_stack, n);
		CHECK(own[0] == (uint64_t)n && on_stack == (uint64_t)n);
	}
	/* The pause is needed, because the plugin looks up addresses less often after look-ups that found nothing. */
	usleep(100000);
	/* These addresses are in the segment, but are no registers of a holder. */
	marked_store(reg(relays, END), 1);
	marked_store((char *)reg(relays, EMIT) + 4, 1);
	marked_store(reg(relays, 4088), 1);
	marked_store(reg(0, EMIT), 1);
	marked_store(reg(clients, EMIT), 1);
	marked_store(segment + 0x800, 1);
	/* The stored value is not the number in the slot. */
	slot(relays, 9, 1, 2);
	marked_store(reg(relays, EMIT), 8);
	CHECK(host(relays)[16] == (8 | (uint64_t)3 << 32));
	points((void *)0);
}

#if defined(__x86_64__)
static const unsigned char MARKED[] = { 0x48, 0x89, 0xb7, 0x70, 0x72, 0x54, 0x68, 0xc3 };
/* A store that is not marked: its displacement differs. `aim` changes the base to reach the same place. */
static const unsigned char PLAIN[] = { 0x48, 0x89, 0xb7, 0x70, 0x72, 0x54, 0x67, 0xc3 };
enum { LEAST_SPLIT = 1, MAX_SPLIT = 6, SPLIT_STEP = 1 };
static void *aim(void *to, int marked) { return (char *)to - (marked ? 0x68547270 : 0x67547270); }
#else
static const uint32_t MARKED[] = { 0xd28d0e9f, 0xf9000001, 0xd65f03c0 };
static const uint32_t PLAIN[] = { 0xd503201f, 0xf9000001, 0xd65f03c0 };
enum { LEAST_SPLIT = 4, MAX_SPLIT = 4, SPLIT_STEP = 4 };
static void *aim(void *to, int marked) { (void)marked; return to; }
#endif

typedef void code(void *, uint64_t);

static char *code_pages(void)
{
	char *pages = mmap(NULL, 8192, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	CHECK(pages != MAP_FAILED);
	return pages;
}

static code *put(char *at, const void *bytes, size_t len)
{
	memcpy(at, bytes, len);
	__builtin___clear_cache(at, at + len);
	return (code *)at;
}

/* Executes a marked store whose bytes are on two pages. */
static void split(void)
{
	uint32_t n = 0;
	for (int before = LEAST_SPLIT; before <= MAX_SPLIT; before += SPLIT_STEP) {
		code *store = put(code_pages() + 4096 - before, MARKED, sizeof MARKED);
		n++;
		slot(relays, n, relays, n);
		store(aim(reg(relays, EMIT), 1), n);
		CHECK(is_answered(relays, n));
	}
#if defined(__aarch64__)
	/* Jumps directly to the store after the marker, as if a signal had come between the two instructions. */
	/* The store ends a page in the first turn, and begins a page in the second turn. */
	for (int at = 4092; at <= 4096; at += 4) {
		code *marker = put(code_pages() + at - 4 + 0, MARKED, sizeof MARKED);
		n++;
		slot(relays, n, relays, n);
		((code *)((char *)marker + 4))(reg(relays, EMIT), n);
		CHECK(is_answered(relays, n));
	}
#endif
	printf("points %d\n", n);
}

/*
 * Rewrites a store instruction between two executions of the instruction. The plugin has to see only those
 * executions whose store is marked.
 */
static void rewritten(void)
{
	char *pages = code_pages();
	for (uint32_t n = 1; n <= 200; n++) {
		int marked = n % 3 == 0;
		code *store = put(pages + 64, marked ? MARKED : PLAIN, sizeof MARKED);
		slot(relays, n, relays, n);
		for (int again = 0; again < 2; again++) {
			store(aim(reg(relays, EMIT), marked), n);
			CHECK(is_answered(relays, n) == marked);
		}
	}
}

/* Makes `count` points, and prints how many points were answered. */
static void flood(uint32_t count)
{
	uint32_t answered = 0;
	for (uint32_t n = 1; n <= count; n++) {
		slot(relays, n, relays, n);
		marked_store(reg(relays, EMIT), n);
		answered += is_answered(relays, n);
	}
	printf("answered %u\n", answered);
}

static void *flood_once(void *arg)
{
	uint64_t client = relays + (uintptr_t)arg;
	slot(client, 1, client, 1);
	marked_store(reg(client, EMIT), 1);
	return (void *)(uintptr_t)is_answered(client, 1);
}

/* Makes a point on each of `count` threads, and prints how many points were answered. */
static void crowd(int count)
{
	pthread_t thread[64];
	void *answered;
	int total = 0;
	for (intptr_t i = 0; i < count; i++) {
		/* Each thread ends before the next thread begins. */
		CHECK(pthread_create(&thread[i], NULL, flood_once, (void *)i) == 0);
		CHECK(pthread_join(thread[i], &answered) == 0);
		total += answered != NULL;
	}
	printf("answered %d\n", total);
}

int main(int argc, char **argv)
{
	const char *act = argc > 1 ? argv[1] : "";
	int argument = argc > 2 ? atoi(argv[2]) : 0;
	points_each = argc > 3 ? atoi(argv[3]) : 3;
	map();
	if (!strcmp(act, "threads"))
		threads(argument);
	else if (!strcmp(act, "in_turns"))
		in_turns(argument);
	else if (!strcmp(act, "forks"))
		forks();
	else if (!strcmp(act, "elsewhere"))
		elsewhere();
	else if (!strcmp(act, "outside"))
		outside();
	else if (!strcmp(act, "split"))
		split();
	else if (!strcmp(act, "rewritten"))
		rewritten();
	else if (!strcmp(act, "flood"))
		flood(argument);
	else if (!strcmp(act, "crowd"))
		crowd(argument);
	else if (!strcmp(act, "unmarked"))
		for (uint32_t n = 1; n <= 3; n++)
			*(volatile uint64_t *)reg(relays, EMIT) = n;
	else
		CHECK(!"known act");
	printf("done\n");
	return 0;
}
