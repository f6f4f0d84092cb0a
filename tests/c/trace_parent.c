/* Prints the span during which the host records this program. */
#include <hypertrace.h>
#include <stdio.h>
#include <string.h>

int main(void) {
    char text[56];
    memset(text, 'x', sizeof(text));
    if (hypertrace_trace_parent(text, sizeof(text) - 1) || text[0] != 'x') {
        return 1;
    }
    if (!hypertrace_trace_parent(text, sizeof(text))) {
        strcpy(text, "none");
    }
    puts(text);
    return 0;
}
