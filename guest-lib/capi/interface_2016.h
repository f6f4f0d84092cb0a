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
