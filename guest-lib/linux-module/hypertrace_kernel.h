/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Trace events of kernel code. Both functions may be called in any context, NMIs
 * included: they take no lock, do not sleep where the caller must not, and do nothing
 * where there is no device.
 *
 *	static HYPERTRACE_SITE(disk_read, "disk_read(lba:u64,len:u32)");
 *
 *	u64 values[] = { lba, len };
 *	hypertrace_event(&disk_read, values, ARRAY_SIZE(values));
 */
#ifndef HYPERTRACE_KERNEL_H
#define HYPERTRACE_KERNEL_H

#include <linux/types.h>

/* An event: its schema, and numbers that follow from it. */
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
 * Records an event in the ring of this CPU: no exit. `values` has a word for each
 * field. Returns 0, also if the event is off; -ENODEV; -EINVAL (the text is no schema, or
 * has too many fields); or, counted: -EBUSY (it interrupted another event of this CPU),
 * -ENOSPC (the ring is full).
 */
int hypertrace_event(struct hypertrace_site *site, const u64 *values, unsigned int count);

/*
 * Makes a reference point: in order with what the host does. One exit to a device.
 * Over shared memory the caller waits for the host, a second at most, if it may sleep;
 * else the host takes it soon. Returns as above, and -EIO if the host refused it or
 * did not answer.
 */
int hypertrace(struct hypertrace_site *site, const u64 *values, unsigned int count);

#endif
