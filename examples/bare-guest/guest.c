/* A guest without libc, as in firmware or a kernel: it leases a client, and makes events and points. */
#include <hypertrace-bare.h>

struct result {
    uint64_t dropped, unanswered, host_time;
};

/* Makes events and points of the device alternately. Returns false if there is no device or no such client. */
bool trace(void *const bars[4], uint32_t number, uint64_t events, uint64_t points,
           struct result *result);

bool trace(void *const bars[4], uint32_t number, uint64_t events, uint64_t points,
           struct result *result) {
    struct hypertrace_bare_device device;
    struct hypertrace_bare client;
    const bool is_there = bars[1] == NULL ? hypertrace_bare_at_window(&device, bars[0])
                                          : hypertrace_bare_at_bars(&device, bars[0], bars[1], bars[2], bars[3]);
    if (!is_there ||
        !hypertrace_bare_lease(&client, &device, number, 5, 0x1234567 + number, "bare")) {
        return false;
    }
    const struct hypertrace_bare_event step = hypertrace_bare_event_of("bare_step(n:u64,minus:i64)");
    const struct hypertrace_bare_event point = hypertrace_bare_event_of("bare_point(n:u64)");
    const struct hypertrace_bare_event end = hypertrace_bare_event_of("bare_end()");
    result->dropped = result->unanswered = result->host_time = 0;
    for (uint64_t n = 0; n < events || n < points; n++) {
        /* A ring that discards has no room for all events, so the host takes the events in portions. */
        for (uint64_t turns = 0; n % 500 == 499 && !hypertrace_bare_is_taken(&client); turns++) {
            if (turns % 1000000 == 0) {
                hypertrace_bare_kick(&client);
            }
        }
        if (n < events) {
            const uint64_t args[2] = {n, (uint64_t)0 - n};
            result->dropped += !hypertrace_bare_emit(&client, &step, args, 2);
        }
        if (n < points) {
            struct hypertrace_bare_reply reply;
            const bool is_recorded = hypertrace_bare_point(&client, &point, &n, 1, &reply);
            result->unanswered += !is_recorded || reply.host_time < result->host_time;
            result->host_time = reply.host_time;
        }
    }
    result->dropped += !hypertrace_bare_emit(&client, &end, NULL, 0);
    const uint64_t more[2] = {2, 3};
    hypertrace_bare_2016(&device, number, 1, more, 2);
    hypertrace_bare_kick(&client);
    hypertrace_bare_publish_losses(&client);
    return true;
}
