/* The first program of a Linux guest. The program makes the kernel work, and then ends the machine. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/reboot.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
#if defined(__x86_64__)
#include <sys/io.h>
#endif

/* A device of the machine writes this text to a file. */
static void write_out(const char *text);
/* Prepares the device. Returns 0 on success. */
static int open_out(void);

#if defined(__x86_64__)
/* QEMU's isa-debugcon. */
static void write_out(const char *text)
{
	size_t length = strlen(text);

	asm volatile("rep outsb" : "+S"(text), "+c"(length) : "d"(0xe9) : "memory");
}

static int open_out(void)
{
	return iopl(3);
}
#else
/* Semihosting: SYS_WRITE0. QEMU reads the text through the guest's page tables, so the text must be mapped. */
static void write_out(const char *text)
{
	char here[1024];

	strncpy(here, text, sizeof here - 1);
	here[sizeof here - 1] = 0;
	{
		register long operation asm("x0") = 4;
		register const char *string asm("x1") = here;

		asm volatile("hlt 0xf000" : "+r"(operation) : "r"(string) : "memory");
	}
}

static int open_out(void)
{
	return 0;
}
#endif

static void write_out_functions(void)
{
	FILE *symbols = fopen("/proc/kallsyms", "r");
	char line[1024];

	while (symbols && fgets(line, sizeof line, symbols))
		write_out(line);
}

/* Processes that wait for each other, so that the kernel switches between their stacks. */
static void play_ping_pong(int times)
{
	int there[2], back[2];
	char byte = 0;

	if (pipe(there) || pipe(back))
		return;
	if (!fork()) {
		for (int i = 0; i < times; i++)
			if (read(there[0], &byte, 1) != 1 || write(back[1], &byte, 1) != 1)
				_exit(1);
		_exit(0);
	}
	for (int i = 0; i < times; i++)
		if (write(there[1], &byte, 1) != 1 || read(back[0], &byte, 1) != 1)
			break;
	wait(NULL);
}

int main(int argc, char **argv)
{
	int is_for_functions = argc > 1 && !strcmp(argv[argc - 1], "kallsyms");

	mkdir("/proc", 0755);
	if (mount("proc", "/proc", "proc", 0, NULL) || open_out())
		write_out("failed\n");
	if (is_for_functions) {
		write_out_functions();
	} else {
		play_ping_pong(500);
		write_out("done\n");
	}
	reboot(RB_AUTOBOOT);
	return 1;
}
