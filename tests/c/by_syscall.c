/* A point that an emulator's plugin takes by a system call. Exit code 0: it was recorded. */
#include <hypertrace.h>
#include <stdio.h>

int main(void) {
    static struct hypertrace_options options;
    options.size = sizeof options;
    options.by_syscall = true;
    char why[512];
    if (!hypertrace_open(&options, why, sizeof why)) {
        fprintf(stderr, "%s\n", why);
        return 1;
    }
    struct hypertrace_reply reply;
    HYPERTRACE_REFERENCE_POINT(&reply, "c_by_syscall");
    return reply.outcome == HYPERTRACE_OUTCOME_RECORDED ? 0 : 2;
}
