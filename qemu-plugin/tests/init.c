/* The first program of a Linux guest: it has work for the kernel, and ends the machine. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/io.h>
#include <sys/mount.h>
#include <sys/reboot.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

/* QEMU's isa-debugcon writes these bytes to a file. */
static void write_out(const char *bytes, size_t length)
{
	asm volatile("rep outsb" : "+S"(bytes), "+c"(length) : "d"(0xe9) : "memory");
}

static void write_out_functions(void)
{
	FILE *symbols = fopen("/proc/kallsyms", "r");
	char line[1024];

	while (symbols && fgets(line, sizeof line, symbols))
		write_out(line, strlen(line));
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
	if (mount("proc", "/proc", "proc", 0, NULL) || iopl(3))
		write_out("failed\n", 7);
	if (is_for_functions) {
		write_out_functions();
	} else {
		play_ping_pong(500);
		write_out("done\n", 5);
	}
	reboot(RB_AUTOBOOT);
	return 1;
}
