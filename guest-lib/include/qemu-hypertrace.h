/*
 * qemu-hypertrace.h: the interface of 2016, of the series of patches "hypertrace" for QEMU.
 *
 *     uint64_t *data = qemu_hypertrace_data(client);
 *     data[0] = 0xcafe;
 *     qemu_hypertrace(client, 0xfeca);
 *
 * Programs for its library compile and work unchanged. New programs use hypertrace.h. Both are in
 * libhypertrace.a and libhypertrace.so; docs/c.md describes their use.
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
 * `base` is the folder of the PCI function in sysfs, as in
 * "/sys/devices/pci0000:00/0000:00:04.0", or the file of a segment. NULL: the library searches,
 * also where no virtual machine is.
 *
 * Returns 0. If there is nothing to open, or the system does not allow it, the function sets errno, writes
 * the reason to stderr and returns -1.
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
 * Returns how many clients there are: numbers below it are valid. 0 without a channel.
 */
uint64_t qemu_hypertrace_max_clients(void);

/**
 * Returns the number of arguments of an event, with its first. 0 without a channel.
 */
uint64_t qemu_hypertrace_num_args(void);

/**
 * Returns the place for a client's arguments but the first. They keep their values after an event.
 * NULL if there is no such client.
 */
uint64_t *qemu_hypertrace_data(uint64_t client);

/**
 * Records an event: this argument, and those at the client's `qemu_hypertrace_data`. From a
 * virtual machine it is one exit. Over a segment it is a commit.
 *
 * Threads that use it at the same time need different clients.
 */
void qemu_hypertrace(uint64_t client, uint64_t arg1);

#ifdef __cplusplus
}  /* extern "C" */
#endif  /* __cplusplus */

#endif  /* QEMU_HYPERTRACE_H */
