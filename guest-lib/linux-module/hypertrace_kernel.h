/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Trace events of kernel code. Both functions may be called in any context, NMIs
 * included: the functions take no lock, do not sleep where the caller must not sleep, and do
 * nothing if there is no device.
 *
 *	static HYPERTRACE_SITE(disk_read, "disk_read(lba:u64,len:u32)");
 *
 *	u64 values[] = { lba, len };
 *	hypertrace_event(&disk_read, values, ARRAY_SIZE(values));
 */
#ifndef HYPERTRACE_KERNEL_H
#define HYPERTRACE_KERNEL_H

#include <linux/types.h>

/* An event: its schema, and numbers that the module computes from the schema. */
struct hypertrace_site {
	/* docs/abi.md, "Schema and ids". Fields of one word only: no str, no [u64]. */
	const char *text;
	u32 length;
	/* 0 until the first use. */
	u32 id;
	u32 name_hash;
};

#define HYPERTRACE_SITE(variable, schema) \
	struct hypertrace_site variable = { .text = schema, .length = sizeof(schema) - 1 }

/*
 * Records an event in the ring of this CPU, without an exit. `values` has a word for each field.
 * Returns 0 if the event was recorded or is off, -ENODEV if there is no device, and -EINVAL if the
 * text is no schema or has too many fields. If the event interrupts another event of this CPU, the
 * function counts the event as lost and returns -EBUSY. If the ring is full, the function counts
 * the event as lost and returns -ENOSPC.
 */
int hypertrace_event(struct hypertrace_site *site, const u64 *values, unsigned int count);

/*
 * Makes a reference point: an event that is ordered with the host's events. On a device, the point
 * costs one exit. In shared memory, the function waits at most a second for the host if the caller
 * may sleep. If the caller may not sleep, the host takes the point after the function has returned.
 * Returns the same values as hypertrace_event, and -EIO if the host refused the point or did not
 * answer.
 */
int hypertrace(struct hypertrace_site *site, const u64 *values, unsigned int count);

#endif
