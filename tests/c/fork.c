/* A parent and its child, each with its own clients. */
#include <hypertrace.h>

#include <sys/wait.h>
#include <unistd.h>

static void events(const char *who) {
    for (uint64_t n = 0; n < 100; n++) {
        HYPERTRACE_EVENT("forked", who, n);
    }
}

int main(void) {
    events("parent");
    const pid_t child = fork();
    if (child == 0) {
        events("child");
        enum hypertrace_outcome outcome;
        HYPERTRACE_COMMIT(&outcome, "done", (who, "child"));
        _exit(outcome != HYPERTRACE_OUTCOME_RECORDED);
    }
    events("parent");
    int status = 1;
    return child < 0 || waitpid(child, &status, 0) != child || status != 0;
}
