/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * The parts of the module, from the bottom up: hypertrace-bare.h (the producer of a client, also
 * for firmware), point (reference points), events (the exported functions), forward
 * (tracepoints), file (/dev/hypertrace), pci (binding).
 */
#ifndef HYPERTRACE_MODULE_H
#define HYPERTRACE_MODULE_H

#include <asm/barrier.h>
#include <asm/tsc.h>
#include <linux/atomic.h>
#include <linux/kref.h>
#include <linux/ktime.h>
#include <linux/miscdevice.h>
#include <linux/mutex.h>
#include <linux/pci.h>
#include <linux/stddef.h>
#include <linux/types.h>
#include <linux/uidgid.h>
#include <linux/workqueue.h>

/* The producer of hypertrace-bare.h uses the kernel's types, clocks and fence. */
#define HYPERTRACE_BARE_HAS_TYPES
#define HYPERTRACE_BARE_NOW(device) \
	((device)->clock == HYPERTRACE_ABI_CLOCK_COUNTER ? rdtsc() : ktime_get_raw_fast_ns())
#define HYPERTRACE_BARE_FENCE() wmb()
#include "hypertrace-bare.h"
#include "hypertrace_kernel.h"

#if PAGE_SIZE != HYPERTRACE_ABI_PAGE
#error "pages of clients are 4 KiB: with larger ones a program would get those of its neighbours"
#endif
#ifndef CONFIG_X86_64
#error "registers, memory types and the counter are x86-64's so far"
#endif

/*
 * A CPU's client. Only code on this CPU uses the client, with interrupts off. An NMI that emits in
 * the middle of an emit changes only the member `lost_busy`, which counts the NMI's event.
 */
struct ht_client {
	struct hypertrace_bare bare;
	/* Sequence number of the last point that this client asked a segment's host to serve. */
	u32 asked;
	/* The ring's head when the periodic work last looked at this client. */
	u64 looked_at;
} ____cacheline_aligned;

struct ht_file;

/*
 * A PCI function to which the driver is bound. This memory is freed after the last file is closed.
 */
struct ht_device {
	struct kref kref;
	struct pci_dev *pci;
	/* A copy of the config page. The values in the next two lines come from this copy. */
	u64 config[HYPERTRACE_ABI_CONFIG_WORDS];
	struct hypertrace_bare_device bare;
	bool traps, remote;
	/* The segment's host has ended: all events are off. */
	bool ended;

	/* Mappings: the memory (the whole window of a segment, or the rings), and registers. */
	void *memory;
	void __iomem *registers;
	u8 *local;
	phys_addr_t place[HYPERTRACE_BARE_REGIONS];

	u8 mask[HYPERTRACE_ABI_MASK_BYTES];
	u64 mask_version;
	struct delayed_work look;

	/* Number of clients that belong to CPUs: clients [0, kernel_clients). */
	u32 kernel_clients;
	struct ht_client *clients;

	struct miscdevice misc;
	/*
	 * Lock that a task holds while the task erases a client. This lock is taken before `lock`.
	 */
	struct mutex erasing;
	/* Guards the members below. This lock is taken before a file's lock. */
	struct mutex lock;
	bool gone;
	struct list_head files;
	struct ht_file **owners;
	/* For each client, the user who held the client last. */
	kuid_t *users;
	u64 *shown;
};

/* clock.c */
void ht_choose_clock(struct ht_device *device);
const char *ht_clock_reason(const struct ht_device *device);

/* point.c */
bool ht_has_ended(const struct ht_device *device);
int ht_record(struct ht_client *client, const struct hypertrace_bare_event *event,
	      const u64 *values, u32 count, u32 flags);
int ht_point(struct ht_client *client, const struct hypertrace_bare_event *event,
	     const u64 *values, u32 count, u32 *asked);
int ht_wait(const struct ht_client *client, u32 seq);
void ht_prepare_panic(struct ht_device *device);
void ht_panic_point(struct ht_device *device, const char *why);

/* events.c */
struct ht_device *ht_current(void);
struct ht_client *ht_this_cpu(struct ht_device *device);
bool ht_is_off(const struct ht_device *device, u32 name_hash);
void ht_begin_events(struct ht_device *device);
void ht_end_events(void);

/* forward.c */
void ht_begin_forwarding(void);
void ht_end_forwarding(void);
void ht_forward_exit(void);

/* file.c */
int ht_begin_files(struct ht_device *device);
void ht_end_files(struct ht_device *device);
void ht_free(struct kref *kref);

static inline struct ht_device *ht_device_of(const struct ht_client *client)
{
	return container_of(client->bare.device, struct ht_device, bare);
}

#endif
