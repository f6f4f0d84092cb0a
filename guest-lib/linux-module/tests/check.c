// SPDX-License-Identifier: GPL-2.0-only
/*
 * Checks /dev/hypertrace as a program sees this file, and prints a line for each check. `check
 * hold` loads and stores through its mapping until the device is gone. `check look` looks for words
 * that another user has left. `check leave` leaves impossible values in all clients. `check erase`
 * counts leases while another client is erased. `check crowd` measures a lease while another file
 * has thousands of mappings. `check silence` keeps the bells of all clients silent until a signal
 * kills the program. Linked statically.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <hypertrace-bare.h>
#include "../hypertrace_ioctl.h"

#define NODE "/dev/hypertrace"
#define PAGE HYPERTRACE_ABI_PAGE
#define SLOT HYPERTRACE_ABI_G_SLOT

static int failed;
static sigjmp_buf before;
static volatile sig_atomic_t caught;

static void check(const char *what, int is_right)
{
	printf("%s: %s\n", is_right ? "ok" : "FAILED", what);
	fflush(stdout);
	failed |= !is_right;
}

static void catch(int signal)
{
	caught = signal;
	siglongjmp(before, 1);
}

/* Returns the signal of a store, 0 if there is none. */
static int store(volatile uint64_t *word, uint64_t value)
{
	caught = 0;
	if (!sigsetjmp(before, 1))
		*word = value;
	return caught;
}

static int load(volatile uint64_t *word)
{
	caught = 0;
	if (!sigsetjmp(before, 1))
		(void)*word;
	return caught;
}

static int lease(int file, uint32_t client)
{
	return ioctl(file, HYPERTRACE_LEASE, &client) ? -errno : (int)client;
}

static int release(int file, uint32_t client)
{
	return ioctl(file, HYPERTRACE_RELEASE, &client) ? -errno : 0;
}

/* Numbers of the config page. */
struct window {
	uint64_t clients, kernels, size, control, rings, stride, features;
};

static volatile uint64_t *map(int file, struct window *window)
{
	const void *page = mmap(NULL, PAGE, PROT_READ, MAP_SHARED, file, 0);
	struct hypertrace_bare_device device;
	void *all;

	if (page == MAP_FAILED || !hypertrace_bare_at_bars(&device, page, NULL, NULL, NULL))
		return NULL;
	window->clients = device.clients;
	window->features = device.features;
	window->kernels = ((const uint64_t *)page)[HYPERTRACE_ABI_CONFIG_VCPU_CLIENTS];
	window->stride = 8 * device.client_stride;
	window->control = device.offset[HYPERTRACE_BARE_CONTROL] + device.registers;
	window->rings = device.offset[HYPERTRACE_BARE_RINGS];
	window->size = device.window;
	munmap((void *)page, PAGE);
	all = mmap(NULL, window->size, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
	return all == MAP_FAILED ? NULL : all;
}

static volatile uint64_t *area(volatile uint64_t *all, const struct window *w, uint64_t client)
{
	return all + (w->rings + HYPERTRACE_ABI_MASK_BYTES + client * w->stride) / 8;
}

static volatile uint64_t *registers(volatile uint64_t *all, const struct window *w, uint64_t client)
{
	return all + (w->control + client * PAGE) / 8;
}

static void check_leases(int one, int other, const struct window *w)
{
	int client = lease(one, HYPERTRACE_ANY), count, done = 0;
	uint32_t none = 0;

	check("a lease of any client is one that is not the kernel's", client == (int)w->kernels);
	check("the same lease again is no error", lease(one, client) == client);
	check("a client has one holder", lease(other, client) == -EBUSY);
	for (count = 0; done >= 0; count++)
		done = lease(other, HYPERTRACE_ANY);
	check("more holders than clients are refused", done == -EBUSY);
	check("all clients but the kernel's are leased",
	      count == (int)(w->clients - w->kernels));
	check("the kernel's client is refused", lease(one, 0) == -EINVAL);
	check("a number too large is refused", lease(one, w->clients) == -EINVAL);
	check("another's lease is not given back", release(one, client + 1) == -EINVAL);
	check("a number too large is not given back", release(one, UINT32_MAX - 1) == -EINVAL);
	check("no address is an error", ioctl(one, HYPERTRACE_LEASE, NULL) && errno == EFAULT);
	check("an unknown call is refused", ioctl(one, _IO(0xe7, 9), &none) && errno == ENOTTY);
	close(other);
	other = open(NODE, O_RDWR);
	check("a close gives the leases back", lease(other, client + 1) == client + 1);
	close(other);
}

static void check_pages(int one, volatile uint64_t *all, const struct window *w)
{
	int other = open(NODE, O_RDWR), client = w->kernels;
	struct window same;
	volatile uint64_t *others = map(other, &same), *guest = area(all, w, client);
	uint64_t word = PAGE / 8, page;

	check("another has the client", lease(other, client) == -EBUSY);
	check("a leased page can be stored to", !store(&guest[SLOT], 77) && guest[SLOT] == 77);
	check("another's page cannot be seen",
	      !load(area(others, w, client) + SLOT) && area(others, w, client)[SLOT] != 77);
	check("a store to another's page leads nowhere",
	      !store(area(others, w, client) + SLOT, 78) && guest[SLOT] == 77);
	check("a store to the kernel's page leads nowhere",
	      !store(area(all, w, 0) + SLOT, 79) && area(others, w, 0)[SLOT] != 79);
	check("the kernel's registers are out of reach",
	      !store(registers(all, w, 0), 80) && registers(all, w, 0)[0] == 80 &&
		      registers(others, w, 0)[0] != 80);
	check("the host's page is read-only", store(&guest[word], 1) == SIGBUS);
	check("the mask is read-only", store(all + w->rings / 8, 1) == SIGBUS);
	check("the config page is read-only", store(all, 1) == SIGBUS);
	if (w->features & HYPERTRACE_ABI_FEATURE_REMOTE)
		check("page L is read-only", store(all + HYPERTRACE_ABI_PAGE_L / 8, 1) == SIGBUS);
	load(&guest[word]);
	mprotect((void *)&guest[word], PAGE, PROT_NONE);
	mprotect((void *)&guest[word], PAGE, PROT_READ | PROT_WRITE);
	check("the host's page stays read-only", store(&guest[word], 1) == SIGBUS);
	check("a mapping does not grow",
	      mremap((void *)all, w->size, w->size + PAGE, MREMAP_MAYMOVE) == MAP_FAILED);

	release(one, client);
	check("a page is out of reach after its lease", guest[SLOT] != 77);
	store(&guest[SLOT], 81);
	check("the next holder gets it", lease(other, client) == client &&
					     area(others, w, client)[SLOT] == 77);
	release(other, client);
	lease(one, client);
	check("and so does the last one again", guest[SLOT] == 77);
	/* Loads a word of each page of the window, also of pages that belong to no client. */
	for (page = 0; page < w->size; page += PAGE)
		if (load(others + page / 8))
			check("each page can be loaded", 0);
	munmap((void *)others, w->size);
	close(other);
}

static void *try(int file, uint64_t size, int protection, int flags, off_t offset)
{
	return mmap(NULL, size, protection, flags, file, offset);
}

static void check_mappings(int file, const struct window *w)
{
	int both = PROT_READ | PROT_WRITE, reader = open(NODE, O_RDONLY);
	off_t last = (off_t)1 << 62;

	check("a private mapping is refused",
	      try(file, PAGE, both, MAP_PRIVATE, 0) == MAP_FAILED && errno == EINVAL);
	check("one to execute is refused",
	      try(file, PAGE, PROT_READ | PROT_EXEC, MAP_SHARED, 0) == MAP_FAILED);
	check("one by a reader is refused",
	      try(reader, PAGE, PROT_READ, MAP_SHARED, 0) == MAP_FAILED);
	check("one that is too long is refused",
	      try(file, w->size + PAGE, both, MAP_SHARED, 0) == MAP_FAILED);
	check("one after the window is refused",
	      try(file, PAGE, both, MAP_SHARED, w->size) == MAP_FAILED);
	check("one far after it is refused",
	      try(file, PAGE, both, MAP_SHARED, last) == MAP_FAILED);
	close(reader);
}

static void check_fork(volatile uint64_t *all, const struct window *w)
{
	volatile uint64_t *guest = area(all, w, w->kernels);
	int status = -1;
	pid_t child = fork();

	if (!child)
		_exit(load(guest));
	waitpid(child, &status, 0);
	check("a child does not inherit the mapping",
	      WIFEXITED(status) && WEXITSTATUS(status) == SIGSEGV);
	check("its parent keeps it", guest[SLOT] == 77);
}

/* Returns true if the next holder of the client starts from this word of page G. */
static int is_total(unsigned int word)
{
	return word == HYPERTRACE_ABI_G_HEAD || word == HYPERTRACE_ABI_G_LOST_FULL || word == HYPERTRACE_ABI_G_LOST_BUSY ||
	       word == HYPERTRACE_ABI_G_LOST_UNATTACHED || word == HYPERTRACE_ABI_G_SCHEMA_LEN;
}

/* Looks in each client for what its last holder, another user, has left. */
static int look(int file, volatile uint64_t *all, const struct window *w)
{
	int client, seen = 0, others = 0, words, done;
	unsigned int word;

	for (client = w->kernels; client < (int)w->clients; client++) {
		volatile uint64_t *ring = area(all, w, client) + 2 * PAGE / 8;
		volatile uint64_t *end = area(all, w, client + 1);
		volatile uint64_t *guest = area(all, w, client), *control = registers(all, w, client);

		/* The lease succeeds once the host has taken the other user's events. */
		while ((done = lease(file, client)) == -EBUSY)
			usleep(1000);
		check("a client of another user's is leased", done == client);
		for (words = 0; ring < end; ring++)
			words += *ring != 0;
		seen = words > seen ? words : seen;
		for (word = 0; word < PAGE / 8; word++) {
			others += !is_total(word) && guest[word];
			others += w->features & HYPERTRACE_ABI_FEATURE_REMOTE && word && control[word];
		}
		check("the schema log is read", guest[HYPERTRACE_ABI_G_SCHEMA_LEN] == guest[PAGE / 8 + 1]);
		release(file, client);
	}
	/* One word of each ring stays: the sequence number. */
	check("nothing of another user's events is left", seen <= 1);
	check("no other word of another user's is left", !others);
	return failed;
}

/*
 * Leaves impossible values in each client's words, which must not spoil the next holder's points
 * and texts.
 */
static int leave(int file, volatile uint64_t *all, const struct window *w)
{
	unsigned int word;
	int client;

	for (client = w->kernels; client < (int)w->clients; client++) {
		volatile uint64_t *guest = area(all, w, client), *control = registers(all, w, client);

		check("the client is leased", lease(file, client) == client);
		for (word = 1; word < PAGE / 8; word++)
			if (word < SLOT || word >= SLOT + HYPERTRACE_ABI_SLOT_HEADER_WORDS)
				guest[word] = UINT64_MAX;
		guest[HYPERTRACE_ABI_G_SCHEMA_LEN] = UINT64_MAX / 2;
		guest[HYPERTRACE_ABI_G_HEAD] = (1ULL << 60) + 8;
		/*
		 * If the next holder continued from this value of EMIT, this holder would give a
		 * point the sequence number of a point that the host has already answered.
		 */
		control[HYPERTRACE_ABI_REGISTER_EMIT / 8] = guest[PAGE / 8 + HYPERTRACE_ABI_H_REPLY] - 1;
		control[HYPERTRACE_ABI_REGISTER_LEASE / 8] = UINT64_MAX;
		release(file, client);
	}
	return failed;
}

/* Returns how many of a page's words are not 0. */
static int used(volatile uint64_t *page)
{
	unsigned int word;
	int words = 0;

	for (word = 0; word < PAGE / 8; word++)
		words += page[word] != 0;
	return words;
}

/* Loads and stores until the device is gone, and for a while after. */
static int hold(int file, volatile uint64_t *all, const struct window *w)
{
	volatile uint64_t *guest = area(all, w, w->kernels);
	int client = lease(file, w->kernels), turns = 0;
	unsigned int word;

	printf("holds client %d\n", client);
	fflush(stdout);
	while (lease(file, w->kernels) >= 0 || turns++ < 1000) {
		if (store(&guest[SLOT], 1) || load(&guest[PAGE / 8]) || load(all))
			break;
	}
	check("a mapping outlives its device", turns > 1000);
	check("a lease is refused without a device", lease(file, HYPERTRACE_ANY) == -ENODEV);
	check("the old pages are gone", !store(&guest[0], 0) && !load(registers(all, w, 1)));
	/* If these stores reached the mask, programs would stop recording events. */
	for (word = 0; word < PAGE / 8; word++)
		store(&guest[2 * PAGE / 8 + word], UINT64_MAX);
	check("what a program stores then is not in the mask", !used(all + w->rings / 8));
	check("nor in the host's page", !used(&guest[PAGE / 8]));
	return failed;
}

static volatile int began, ended;

/* Leases a client that no program has leased yet, so that the module erases the client first. */
static void *erase(void *arg)
{
	const struct window *w = arg;
	int file = open(NODE, O_RDWR), client;

	began = 1;
	client = lease(file, w->clients - 1);
	ended = 1;
	check("a client is erased", client == (int)w->clients - 1);
	return NULL;
}

/* Leases another client again and again while a thread leases a client that must be erased. */
static int lease_meanwhile(int file, struct window *w)
{
	int client = w->kernels, leases = 0;
	pthread_t thread;

	check("the client is leased", lease(file, client) == client);
	release(file, client);
	pthread_create(&thread, NULL, erase, w);
	while (!ended) {
		if (lease(file, client) == client && !release(file, client))
			leases += began;
	}
	pthread_join(thread, NULL);
	check("others lease clients while one is erased", leases > 500);
	printf("leases meanwhile: %d\n", leases);
	return failed;
}

/*
 * Leases a client several times and gives it back. Returns the shortest time of a lease and its
 * end, in nanoseconds.
 */
static int64_t shortest_lease(int file, int client)
{
	struct timespec begin, end;
	int64_t time, least = INT64_MAX;
	int i;

	for (i = 0; i < 50; i++) {
		clock_gettime(CLOCK_MONOTONIC, &begin);
		if (lease(file, client) != client || release(file, client))
			return INT64_MAX;
		clock_gettime(CLOCK_MONOTONIC, &end);
		time = (end.tv_sec - begin.tv_sec) * 1000000000LL + end.tv_nsec - begin.tv_nsec;
		least = time < least ? time : least;
	}
	return least;
}

/* Measures a lease before and after another open file maps the client's page 2,000 times. */
static int lease_in_crowd(int file, int other, const struct window *w)
{
	int64_t alone = shortest_lease(file, w->kernels), crowded;
	int i, mapped = 0;

	for (i = 0; i < 2000; i++) {
		volatile uint64_t *page = mmap(NULL, PAGE, PROT_READ, MAP_SHARED, other,
					       w->rings + HYPERTRACE_ABI_MASK_BYTES + w->kernels * w->stride);

		mapped += page != MAP_FAILED && !load(page);
	}
	check("a file is mapped very often", mapped == 2000);
	crowded = shortest_lease(file, w->kernels);
	printf("ns of a lease alone and in a crowd: %lld, %lld\n", (long long)alone,
	       (long long)crowded);
	check("a lease does not look at mappings of other files", crowded < 10 * alone);
	return failed;
}

static int silence(volatile uint64_t *all, const struct window *w)
{
	volatile uint64_t *bells = all + HYPERTRACE_ABI_BELLS / 8;
	uint64_t word;

	printf("silences\n");
	fflush(stdout);
	for (;;)
		for (word = 0; word * 8 < w->clients; word++)
			bells[word] = 0;
	return 0;
}

int main(int argc, char **argv)
{
	int file = open(NODE, O_RDWR), other = open(NODE, O_RDWR);
	struct window window = {};
	volatile uint64_t *all;

	signal(SIGBUS, catch);
	signal(SIGSEGV, catch);
	if (file < 0 || !(all = map(file, &window))) {
		perror(NODE);
		return 1;
	}
	if (argc > 1 && !strcmp(argv[1], "hold"))
		return hold(file, all, &window);
	if (argc > 1 && !strcmp(argv[1], "look"))
		return look(file, all, &window);
	if (argc > 1 && !strcmp(argv[1], "leave"))
		return leave(file, all, &window);
	if (argc > 1 && !strcmp(argv[1], "erase"))
		return lease_meanwhile(file, &window);
	if (argc > 1 && !strcmp(argv[1], "crowd"))
		return lease_in_crowd(file, other, &window);
	if (argc > 1 && !strcmp(argv[1], "silence"))
		return silence(all, &window);
	check_leases(file, other, &window);
	check_pages(file, all, &window);
	check_mappings(file, &window);
	check_fork(all, &window);
	printf("checks failed: %d\n", failed);
	return failed;
}
