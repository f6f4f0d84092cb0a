/* A shared library that traces, loaded while the program runs. */
#include <hypertrace.h>

#if defined(__cplusplus)
extern "C"
#endif
void plugin_events(uint64_t round);

void plugin_events(uint64_t round) {
    for (uint64_t n = 0; n < 10; n++) {
        HYPERTRACE_EVENT("plugged", round, n);
    }
}
