/*
 * qemu-hypertrace.h: the interface of 2016, of the series of patches "hypertrace" for QEMU.
 *
 *     uint64_t *data = qemu_hypertrace_data(client);
 *     data[0] = 0xcafe;
 *     qemu_hypertrace(client, 0xfeca);
 *
 * Programs for the library of 2016 compile and work unchanged. New programs use hypertrace.h. Both interfaces
 * are in libhypertrace.a and libhypertrace.so; docs/c.md describes their use.
 *
 * Made by `cargo xtask header` from guest-lib/capi.
 *
 * SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
 */

#ifndef QEMU_HYPERTRACE_H
#define QEMU_HYPERTRACE_H

#include <stdint.h>
#include <sys/types.h>

#ifdef __cplusplus
extern "C" {
#endif /* __cplusplus */

/**
 * Opens the device or segment for this process. Later calls, also of other threads, do nothing.
 *
 * `base` is the folder of the PCI function in sysfs, as in "/sys/devices/pci0000:00/0000:00:04.0", or the
 * file of a segment. If `base` is NULL, the library searches for a device or a segment.
 *
 * Returns 0. If there is no device and no segment, or the system refuses to open one, the
 * function sets errno, writes the reason to stderr and returns -1.
 *
 * # Safety
 * `base` is a C string or NULL.
 */
int qemu_hypertrace_init(const char *base);

/**
 * Publishes this thread's counts of lost events. The channel stays open, as other threads may still
 * record events. Returns 0.
 */
int qemu_hypertrace_fini(void);

/**
 * Returns the number of clients, 0 without a channel. The clients' numbers begin at 0.
 */
uint64_t qemu_hypertrace_max_clients(void);

/**
 * Returns the number of arguments of an event, including the first argument, or 0 without a channel.
 */
uint64_t qemu_hypertrace_num_args(void);

/**
 * Returns the place for all arguments of a client except the first, or NULL if there is no such client. The
 * arguments keep their values after an event.
 */
uint64_t *qemu_hypertrace_data(uint64_t client);

/**
 * Records an event with `arg1` as its first argument, and the other arguments from the client's
 * `qemu_hypertrace_data`. In a virtual machine, the event costs one exit. Over a segment, the
 * event is a commit.
 *
 * Threads that call this function at the same time need different clients.
 */
void qemu_hypertrace(uint64_t client, uint64_t arg1);

#ifdef __cplusplus
}  /* extern "C" */
#endif  /* __cplusplus */

#endif  /* QEMU_HYPERTRACE_H */
