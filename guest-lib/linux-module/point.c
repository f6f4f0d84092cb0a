// SPDX-License-Identifier: GPL-2.0-only
/*
 * Reference points: the v2 slot of a CPU's client. A device answers during the store to
 * EMIT. The host of a segment is asked by a bell, and looks at bells every millisecond or so.
 */
#include <linux/delay.h>
#include <linux/jiffies.h>
#include <linux/string.h>

#include "module.h"

/* Waits of half a millisecond for the host of a segment, in a panic. */
#define PANIC_WAITS 200
/* Bytes of a panic's message. */
#define MOST_WHY 256

static const char panic_text[] = "guest_panic(why:str)";
static struct ht_event panic_event = { .text = panic_text, .length = sizeof(panic_text) - 1 };

static u64 reply_of(const struct ht_client *client)
{
	return virt_load_acquire(&client->host[HT_H_REPLY]);
}

/* Returns true if the host was asked for a point that it has not answered. */
static bool is_pending(const struct ht_client *client)
{
	return client->asked && (u32)reply_of(client) != client->asked;
}

static bool is_ending(const struct ht_device *device)
{
	return READ_ONCE(*(u32 *)(device->local + HT_L_STATE)) == HT_STATE_ENDED;
}

/* Returns true if the host of a segment has ended: it has taken all that it ever will. */
bool ht_has_ended(const struct ht_device *device)
{
	u64 mark;

	memcpy(&mark, device->config.session, sizeof(mark));
	return READ_ONCE(*(u64 *)(device->local + HT_L_END)) == (mark ?: 1);
}

static int verdict(u64 reply)
{
	u32 status = reply >> 32;

	return status == HT_STATUS_RECORDED || status == HT_STATUS_FILTERED ? 0 : -EIO;
}

/* Adds 1 to the client's bell, a byte of an aligned word that all sides access whole. */
static void ring_bell(const struct ht_client *client)
{
	u8 *bells = client->device->local + (HT_BELLS - HT_PAGE_L);
	atomic64_t *word = (atomic64_t *)(bells + round_down(client->index, HT_WORD));

	atomic64_add(1ULL << (client->index % HT_WORD * 8), word);
}

/* Writes the slot, and stores its number to EMIT. */
static void fire(struct ht_client *client, const struct ht_event *event, u64 now, u32 words,
		 ht_put put, const void *arg)
{
	const struct ht_device *device = client->device;
	u64 *slot = client->guest + HT_G_SLOT;

	/* Not 0: that asks for nothing. */
	client->seq = max_t(u32, client->seq + 1, 1);
	/* First the word that a host may still poll for the point before. */
	WRITE_ONCE(slot[3], words);
	WRITE_ONCE(slot[0], client->seq | (u64)event->id << 32);
	ht_fence(device);
	WRITE_ONCE(slot[1], event->name_hash | (u64)raw_smp_processor_id() << 32);
	WRITE_ONCE(slot[2], now);
	put(slot + HT_SLOT_HEADER_WORDS, arg);
	/* The store to EMIT must come after these. */
	wmb();
	ht_register(client->control, HT_REGISTER_EMIT, client->seq | (u64)event->name_hash << 32);
	if (device->traps)
		return;
	client->asked = client->seq;
	virt_store_release(&slot[3], words | (u64)client->seq << 32);
	wmb();
	ring_bell(client);
}

/*
 * Makes a point. Returns 0 or an error, counted. A segment's host may answer later: then
 * `asked` is the number to wait for, else 0.
 */
int ht_point(struct ht_client *client, const struct ht_event *event, u32 words, ht_put put,
	     const void *arg, u32 *asked)
{
	const struct ht_device *device = client->device;
	u64 now, reply;
	int done = 0;

	*asked = 0;
	/* The slot is in use: a record in the ring takes the point's place. */
	if (!device->traps && is_pending(client))
		return ht_emit(client, event, HT_REFERENCE_POINT, words, put, arg);
	if (ht_enter(client, &now))
		return -EBUSY;
	ht_announce(client, event);
	if (words > HT_SLOT_WORDS) {
		client->lost_full++;
		done = -ENOSPC;
	}
	ht_publish_losses(client);
	if (!done) {
		fire(client, event, now, words, put, arg);
		reply = reply_of(client);
		if ((u32)reply == client->seq)
			done = verdict(reply);
		else if (device->traps)
			done = -EIO;
		else
			*asked = client->seq;
	}
	ht_leave(client, now);
	return done;
}

/* Waits for the host of a segment, a second at most. May sleep. */
int ht_wait(const struct ht_client *client, u32 seq)
{
	unsigned long until = jiffies + HZ;

	do {
		u64 reply = reply_of(client);

		if ((u32)reply == seq)
			return verdict(reply);
		/* Another point of this CPU follows only an answered one. */
		if (READ_ONCE(client->asked) != seq)
			return 0;
		if (is_ending(client->device))
			break;
		usleep_range(100, 500);
	} while (time_before(jiffies, until));
	return -EIO;
}

struct message {
	const char *text;
	u32 length;
};

static u32 message_words(u32 length)
{
	return DIV_ROUND_UP(4 + length, HT_WORD);
}

static void put_message(u64 *to, const void *arg)
{
	const struct message *message = arg;
	u8 bytes[HT_WORD];
	u32 i, total = message_words(message->length) * HT_WORD;

	for (i = 0; i < total; i++) {
		u8 byte = i < 4 ? message->length >> (8 * i) : 0;

		if (i >= 4 && i - 4 < message->length)
			byte = message->text[i - 4];
		bytes[i % HT_WORD] = byte;
		if (i % HT_WORD == HT_WORD - 1) {
			u64 word;

			memcpy(&word, bytes, sizeof(word));
			WRITE_ONCE(to[i / HT_WORD], word);
		}
	}
}

/* Writes the schema of the panic's point to each client's log: in a panic it is too late. */
void ht_prepare_panic(struct ht_device *device)
{
	u32 i;

	panic_event.id = ht_id(panic_text, panic_event.length);
	panic_event.name_hash = ht_hash(HT_FNV_START, panic_text, strchr(panic_text, '(') - panic_text);
	for (i = 0; i < device->kernel_clients; i++)
		ht_announce(&device->clients[i], &panic_event);
}

/*
 * Makes the point of a panic. It may have interrupted an emit of this CPU, so it touches
 * the slot and the totals only, and no state that an emit leaves half changed. Takes no lock.
 */
void ht_panic_point(struct ht_device *device, const char *why)
{
	u32 cpu = raw_smp_processor_id(), waits = PANIC_WAITS, i;
	/* The other CPUs are stopped. */
	struct ht_client *client = &device->clients[cpu < device->kernel_clients ? cpu : 0];
	struct message message = { .text = why, .length = strnlen(why, MOST_WHY) };

	for (i = 0; i < device->kernel_clients; i++)
		ht_publish_losses(&device->clients[i]);
	while (!device->traps && is_pending(client) && --waits > PANIC_WAITS / 2)
		udelay(500);
	fire(client, &panic_event, max(ht_now(device), client->last),
	     message_words(message.length), put_message, &message);
	/* The machine may be off at once. */
	while (!device->traps && is_pending(client) && --waits)
		udelay(500);
}
