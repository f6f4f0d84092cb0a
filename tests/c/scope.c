/*
 * Regions in C and C++ that end at the end of a scope. Each region ends once, whichever way leaves the scope.
 */
#include <hypertrace.h>

static int computed = 0;

static uint64_t next_id(void) { return (uint64_t)++computed; }

static int returns(int n, const char *text) {
    HYPERTRACE_SCOPE("outer", next_id(), n, text, (twice, n * 2));
    HYPERTRACE_SCOPE("inner", n);
    if (n == 1) {
        return n;
    }
    HYPERTRACE_EVENT("before_end", n);
    return 0;
}

int main(void) {
    returns(1, "one");
    returns(2, "two");
    for (int i = 0; i < 3; i++) {
        HYPERTRACE_SCOPE("loop", i);
        if (i == 0) {
            continue;
        }
        if (i == 1) {
            goto out;
        }
    }
out:
    HYPERTRACE_EVENT("end", computed);
    return 0;
}
