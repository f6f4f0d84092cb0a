/*
 * A program that uses only the interface of 2016, and nothing else of this project:
 *
 *     interface_2016 [BASE [CLIENTS EVENTS]]
 *
 * Each of the clients, from 0 on, is a thread of its own. The first argument of each event is
 * FIRST = CLIENT << 32 | NUMBER; the further arguments are FIRST + 1, FIRST + 2 and so on.
 */
#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <qemu-hypertrace.h>

struct work {
    pthread_t id;
    uint64_t client, events;
    const char *base;
};

static void *run(void *argument) {
    const struct work *work = (const struct work *)argument;
    /* In QEMU's user mode, a program of this interface has to make this call. */
    if (qemu_hypertrace_init(work->base) != 0) {
        perror("qemu_hypertrace_init");
        abort();
    }
    uint64_t *data = qemu_hypertrace_data(work->client);
    for (uint64_t n = 0; n < work->events; n++) {
        const uint64_t first = work->client << 32 | n;
        for (uint64_t i = 0; i + 1 < qemu_hypertrace_num_args(); i++) {
            data[i] = first + 1 + i;
        }
        qemu_hypertrace(work->client, first);
    }
    return NULL;
}

int main(int argc, char **argv) {
    const char *base = argc > 1 && strcmp(argv[1], "-") != 0 ? argv[1] : NULL;
    const uint64_t clients = argc > 3 ? strtoull(argv[2], NULL, 10) : 1;
    const uint64_t events = argc > 3 ? strtoull(argv[3], NULL, 10) : 1;
    if (qemu_hypertrace_init(base) != 0) {
        printf("%s\n", errno == ENOENT ? "no channel" : strerror(errno));
        return 1;
    }
    printf("%" PRIu64 " clients, %" PRIu64 " arguments\n", qemu_hypertrace_max_clients(),
           qemu_hypertrace_num_args());
    if (clients > qemu_hypertrace_max_clients()) {
        return 1;
    }
    struct work *work = (struct work *)calloc(clients, sizeof *work);
    if (work == NULL) {
        return 1;
    }
    for (uint64_t i = 0; i < clients; i++) {
        work[i].client = i;
        work[i].events = events;
        work[i].base = base;
        if (pthread_create(&work[i].id, NULL, run, &work[i]) != 0) {
            return 1;
        }
    }
    for (uint64_t i = 0; i < clients; i++) {
        (void)pthread_join(work[i].id, NULL);
    }
    free(work);
    return qemu_hypertrace_fini();
}
