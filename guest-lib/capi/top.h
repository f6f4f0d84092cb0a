/*
 * hypertrace.h: trace events from C and C++, on the host's timeline.
 *
 *     HYPERTRACE_EVENT("disk_read", lba, (len, sectors * 512));
 *
 * Made by `cargo xtask header` from guest-lib/capi; docs/c.md describes its use.
 *
 * SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
 */
