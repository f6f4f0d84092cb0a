/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * The parts of the module, from the bottom up: config (the host's sizes, checked), ring
 * (records of a CPU's client), point (reference points), events (the exported functions),
 * forward (tracepoints), file (/dev/hypertrace), pci (binding).
 */
#ifndef HYPERTRACE_MODULE_H
#define HYPERTRACE_MODULE_H

#include <asm/barrier.h>
#include <asm/local.h>
#include <asm/tsc.h>
#include <linux/atomic.h>
#include <linux/kref.h>
#include <linux/ktime.h>
#include <linux/miscdevice.h>
#include <linux/mutex.h>
#include <linux/pci.h>
#include <linux/types.h>
#include <linux/uidgid.h>
#include <linux/workqueue.h>

#include "hypertrace_abi.h"
#include "hypertrace_kernel.h"

#if PAGE_SIZE != HT_PAGE
#error "pages of clients are 4 KiB: with larger ones a program would get those of its neighbours"
#endif
#ifndef CONFIG_X86_64
#error "registers, memory types and the counter are x86-64's so far"
#endif

#define HT_WORD 8
#define HT_BLOCK_HEADER_WORDS 2
#define HT_LEASE_NAME 64
#define HT_LEASE_WORDS (HT_HEADER_WORDS + 4 + DIV_ROUND_UP(4 + HT_LEASE_NAME, HT_WORD))
/* Slots in a client's table of known ids. At most half of them are used, so a search ends soon. */
#define HT_KNOWN (2 * HT_MAX_SCHEMAS)

/* The config page: docs/abi.md. */
struct ht_config {
	u64 max_clients, client_args, client_data_size, control_size, data_size, magic;
	u32 version, ring_mode;
	u64 features;
	u8 session[16];
	u64 epoch, guest_frequency, host_frequency, vcpu_clients;
	u64 schema_size, ring_size, block_size;
};

enum ht_region { HT_CONFIG, HT_DATA, HT_CONTROL, HT_RINGS, HT_REGIONS };

/* Sizes and places in the window, in bytes, from a config page that was checked. */
struct ht_geometry {
	u32 clients;
	u32 block_words;
	u64 ring_words, schema_words;
	u64 client_stride;
	u64 kick, control_pages;
	u64 used[HT_REGIONS], offset[HT_REGIONS];
	u64 window;
};

struct ht_device;

/* An event: its schema, and numbers that follow from it. */
struct ht_event {
	const char *text;
	u32 length, id, name_hash;
};

/*
 * A CPU's client. Its CPU alone uses it, with interrupts off. An NMI in the middle of an
 * emit finds `busy` and is counted, in `lost_busy`: the one member that it changes.
 */
struct ht_client {
	struct ht_device *device;
	u32 index;
	/* In shared memory: page G, page H, the schema log, the ring, the registers. */
	u64 *guest;
	const u64 *host;
	u64 *schema, *ring;
	u8 *control;

	bool busy, fresh;
	u64 last, head, limit, sequence, token;
	u64 lost_full;
	local_t lost_busy;
	/* As published in page G. */
	u64 told_full, told_busy, told_unattached;
	/* The total of earlier lessees. */
	u64 base_busy, base_unattached;
	/* The number of the last point, and of the one that a segment's host was asked for. */
	u32 seq, asked;
	/* For the periodic work: the head at its last look. */
	u64 looked_at;
	u64 schema_len;
	u32 known_len;
	u32 known[HT_KNOWN];
	u64 lease[HT_LEASE_WORDS];
	u32 lease_words;
} ____cacheline_aligned;

struct ht_file;

/* A function that is bound. It lives until its last file is closed. */
struct ht_device {
	struct kref kref;
	struct pci_dev *pci;
	struct ht_config config;
	struct ht_geometry geometry;
	bool traps, apart, kicks, fenced, counter;
	/* The segment's host has ended: all events are off. */
	bool ended;
	/* The longest pause after which an event need not wake the host, in ticks. */
	u64 pause;

	/* Mappings: the memory (the whole window of a segment, or the rings), and registers. */
	void *memory;
	void __iomem *registers;
	u8 *rings, *control, *local;
	phys_addr_t place[HT_REGIONS];

	u8 mask[HT_MASK_BYTES];
	u64 mask_version;
	struct delayed_work look;

	/* Clients [0, kernel_clients) are the CPUs'. */
	u32 kernel_clients;
	struct ht_client *clients;
	/* Events of CPUs without a client. */
	atomic64_t unattached;

	struct miscdevice misc;
	/* Held while a client is erased; before `lock`. */
	struct mutex erasing;
	/* Guards what follows. Before a file's lock. */
	struct mutex lock;
	bool gone;
	struct list_head files;
	struct ht_file **owners;
	/* The user of each client's last lessee. */
	kuid_t *users;
	struct ht_config *shown;
};

/* Stores the words of a payload; `arg` is the emitter's. */
typedef void (*ht_put)(u64 *to, const void *arg);

/* config.c */
void ht_read_config(struct ht_config *config, const void __iomem *page);
const char *ht_check_config(const struct ht_config *config, struct ht_geometry *geometry);

/* ring.c */
u32 ht_hash(u32 hash, const char *text, size_t length);
u32 ht_id(const char *text, size_t length);
bool ht_is_off(const struct ht_device *device, u32 name_hash);
void ht_refresh_mask(struct ht_device *device);
void ht_switch_off(struct ht_device *device);
void ht_kick(struct ht_device *device);
int ht_enter(struct ht_client *client, u64 *now);
void ht_leave(struct ht_client *client, u64 now);
void ht_announce(struct ht_client *client, const struct ht_event *event);
void ht_publish_losses(struct ht_client *client);
void ht_publish_idle(struct ht_client *client);
bool ht_has_losses(const struct ht_client *client);
int ht_emit(struct ht_client *client, const struct ht_event *event, u16 flags, u32 words,
	    ht_put put, const void *arg);
void ht_lease(struct ht_client *client, struct ht_device *device, u32 index);
bool ht_erase(struct ht_device *device, u32 index);
void ht_put_words(u64 *to, const void *values, u32 words);

/* point.c */
bool ht_has_ended(const struct ht_device *device);
int ht_point(struct ht_client *client, const struct ht_event *event, u32 words, ht_put put,
	     const void *arg, u32 *asked);
int ht_wait(const struct ht_client *client, u32 seq);
void ht_prepare_panic(struct ht_device *device);
void ht_panic_point(struct ht_device *device, const char *why);

/* events.c */
struct ht_device *ht_current(void);
struct ht_client *ht_this_cpu(struct ht_device *device);
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

/* Returns the present time of the device's clock, nonzero. */
static __always_inline u64 ht_now(const struct ht_device *device)
{
	return device->counter ? rdtsc() : ktime_get_raw_fast_ns();
}

/*
 * The host is another CPU also for a kernel of one CPU. These order accesses to
 * memory that is write-back; on other mappings a store fence empties the buffers besides.
 */
static __always_inline void ht_fence(const struct ht_device *device)
{
	if (device->fenced)
		wmb();
	else
		virt_wmb();
}

/* Stores to a register, by the instruction that emulators know: "Marked stores". */
static __always_inline void ht_register(u8 *page, u32 offset, u64 value)
{
	asm volatile("movq %0, %c2(%1)"
		     :
		     : "r"(value), "r"(page + offset - HT_MARK_DISPLACEMENT),
		       "i"(HT_MARK_DISPLACEMENT)
		     : "memory");
}

#endif
