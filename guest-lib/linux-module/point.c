// SPDX-License-Identifier: GPL-2.0-only
/*
 * Events and reference points of a CPU's client. The caller runs on the client's CPU, with
 * interrupts off.
 *
 * A device answers a point during the store to EMIT. For a segment, the client rings its bell to
 * ask the host for an answer. The host looks at the bells about every millisecond.
 */
#include <linux/delay.h>
#include <linux/jiffies.h>
#include <linux/string.h>

#include "module.h"

/* Maximum number of waits for a segment's host in a panic. Each wait takes half a millisecond. */
#define PANIC_WAITS 200
/* Maximum size of a panic's message in bytes. A longer message is cut off. */
#define MAX_WHY 256

static struct hypertrace_bare_event panic_event;

/* Returns true if this client has asked the host for a point that the host has not answered. */
static bool is_pending(const struct ht_client *client)
{
	return client->asked && (u32)hypertrace_bare_reply_(&client->bare) != client->asked;
}

static bool is_ending(const struct ht_device *device)
{
	return READ_ONCE(*(u32 *)(device->local + HYPERTRACE_ABI_L_STATE)) ==
	       HYPERTRACE_ABI_STATE_ENDED;
}

/* Returns true if the host of a segment has ended, and so takes no more records. */
bool ht_has_ended(const struct ht_device *device)
{
	u64 mark = device->config[HYPERTRACE_ABI_CONFIG_SESSION] ?: 1;

	return READ_ONCE(*(u64 *)(device->local + HYPERTRACE_ABI_L_END)) == mark;
}

static int verdict(u64 reply)
{
	u32 status = reply >> 32;

	return status == HYPERTRACE_ABI_STATUS_RECORDED ||
	       status == HYPERTRACE_ABI_STATUS_FILTERED ? 0 : -EIO;
}

/* Asks the host of a segment for the point in the slot, and adds 1 to the client's bell. */
static void ask(struct ht_client *client, u32 words)
{
	const struct ht_device *device = ht_device_of(client);
	const struct hypertrace_bare *bare = &client->bare;
	/* The bell is a byte of an aligned word, which all sides access whole. */
	u8 *bells = device->local + (HYPERTRACE_ABI_BELLS - HYPERTRACE_ABI_PAGE_L);
	atomic64_t *word = (atomic64_t *)(bells + round_down(bare->number, 8));

	client->asked = bare->seq;
	hypertrace_bare_publish_(&device->bare, &bare->guest[HYPERTRACE_ABI_G_SLOT + 3],
				 words | (u64)bare->seq << 32);
	atomic64_add(1ULL << (bare->number % 8 * 8), word);
}

/* Records an event and returns 0, or counts the event as lost and returns -EBUSY or -ENOSPC. */
int ht_record(struct ht_client *client, const struct hypertrace_bare_event *event,
	      const u64 *values, u32 count, u32 flags)
{
	if (hypertrace_bare_record_(&client->bare, event, values, count, flags))
		return 0;
	return client->bare.is_busy ? -EBUSY : -ENOSPC;
}

/*
 * Makes a reference point. Returns 0 or an error. If a segment's host has not answered yet, stores
 * the point's sequence number to `asked`, so that the caller can wait; otherwise stores 0.
 */
int ht_point(struct ht_client *client, const struct hypertrace_bare_event *event,
	     const u64 *values, u32 count, u32 *asked)
{
	struct hypertrace_bare *bare = &client->bare;
	const struct ht_device *device = ht_device_of(client);
	int done = 0;
	u64 reply;

	*asked = 0;
	/*
	 * The slot is in use until the host has answered the last point. Until then, this point
	 * becomes a record in the ring.
	 */
	if (!device->traps && is_pending(client))
		return ht_record(client, event, values, count, HYPERTRACE_ABI_REFERENCE_POINT);
	if (!hypertrace_bare_begin_point_(bare, event, values, count))
		return bare->is_busy ? -EBUSY : -ENOSPC;
	if (!device->traps)
		ask(client, count);
	reply = hypertrace_bare_reply_(bare);
	if ((u32)reply == bare->seq)
		done = verdict(reply);
	else if (device->traps)
		done = -EIO;
	else
		*asked = bare->seq;
	hypertrace_bare_leave_(bare);
	return done;
}

/* Waits for the answer of a segment's host for at most a second. The function may sleep. */
int ht_wait(const struct ht_client *client, u32 seq)
{
	unsigned long until = jiffies + HZ;

	do {
		u64 reply = hypertrace_bare_reply_(&client->bare);

		if ((u32)reply == seq)
			return verdict(reply);
		/* This CPU asks for a later point only after the host has answered this point. */
		if (READ_ONCE(client->asked) != seq)
			return 0;
		if (is_ending(ht_device_of(client)))
			break;
		usleep_range(100, 500);
	} while (time_before(jiffies, until));
	return -EIO;
}

/*
 * Writes the schema of a panic's reference point to each client's schema log, in advance of a
 * panic. A panic may interrupt an emit, so ht_panic_point must not write to the schema log.
 */
void ht_prepare_panic(struct ht_device *device)
{
	u32 i;

	panic_event = hypertrace_bare_event_of("guest_panic(why:str)");
	for (i = 0; i < device->kernel_clients; i++)
		hypertrace_bare_describe_(&device->clients[i].bare, &panic_event);
}

/*
 * Makes the reference point of a panic. The panic may have interrupted an emit of this CPU, and the
 * interrupted emit leaves the ring half changed. So this function writes only the slot and the
 * totals, not the ring. Takes no lock.
 */
void ht_panic_point(struct ht_device *device, const char *why)
{
	u32 cpu = raw_smp_processor_id(), waits = PANIC_WAITS, i;
	/* The other CPUs are stopped. */
	struct ht_client *client = &device->clients[cpu < device->kernel_clients ? cpu : 0];
	struct hypertrace_bare *bare = &client->bare;
	u64 words[(4 + MAX_WHY + 7) / 8];
	u32 count = hypertrace_bare_put_string(words, why, strnlen(why, MAX_WHY));

	for (i = 0; i < device->kernel_clients; i++)
		hypertrace_bare_store_losses_(&device->clients[i].bare);
	while (!device->traps && is_pending(client) && --waits > PANIC_WAITS / 2)
		udelay(500);
	bare->cpu = cpu;
	hypertrace_bare_fire_(bare, &panic_event,
			      max(HYPERTRACE_BARE_NOW(&device->bare), bare->last), words, count);
	if (!device->traps)
		ask(client, count);
	/*
	 * Waits for the host, because the machine may be switched off as soon as this function
	 * returns.
	 */
	while (!device->traps && is_pending(client) && --waits)
		udelay(500);
}
