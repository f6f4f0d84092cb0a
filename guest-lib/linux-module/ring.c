// SPDX-License-Identifier: GPL-2.0-only
/*
 * The producer of a CPU's client: docs/abi.md, "Rings". The caller has interrupts off and
 * is on the client's CPU; `busy` keeps NMIs out.
 *
 * The host's words are hints: each is loaded once and bounded. Positions count words and
 * are masked where they become addresses.
 */
#include <linux/random.h>
#include <linux/sched.h>
#include <linux/slab.h>
#include <linux/string.h>
#include <linux/utsname.h>

#include "module.h"

/* Highest plausible head: at a word per nanosecond a ring gets there in 36 years. */
#define MOST_HEAD (1ULL << 60)

/* FNV-1a, also in parts. */
u32 ht_hash(u32 hash, const char *text, size_t length)
{
	while (length--)
		hash = (hash ^ (u8)*text++) * 0x01000193;
	return hash;
}

/* Returns the id of a schema's text. */
u32 ht_id(const char *text, size_t length)
{
	u32 hash = ht_hash(HT_FNV_START, text, length);

	return hash < HT_ID_FIRST ? hash | 0x80000000U : hash;
}

/* Returns true if the host wants no event of this name, by a private copy of the mask. */
bool ht_is_off(const struct ht_device *device, u32 name_hash)
{
	return READ_ONCE(device->mask[name_hash % HT_MASK_BYTES]);
}

/* Copies the mask if the host says that it has changed. One caller at a time. */
void ht_refresh_mask(struct ht_device *device)
{
	u64 version = virt_load_acquire(&device->clients[0].host[HT_H_MASK_VERSION]);
	unsigned int i;

	if (version == device->mask_version || device->ended)
		return;
	for (i = 0; i < HT_MASK_BYTES; i++)
		WRITE_ONCE(device->mask[i], READ_ONCE(device->rings[i]));
	device->mask_version = version;
}

/* Switches all events off, for good: the host has ended. */
void ht_switch_off(struct ht_device *device)
{
	unsigned int i;

	WRITE_ONCE(device->ended, true);
	for (i = 0; i < HT_MASK_BYTES; i++)
		WRITE_ONCE(device->mask[i], 1);
}

static u64 *at(const struct ht_client *client, u64 position)
{
	return client->ring + (position & (client->device->geometry.ring_words - 1));
}

static u64 block_start(const struct ht_client *client, u64 position)
{
	return position & ~(u64)(client->device->geometry.block_words - 1);
}

static u64 meta(u32 id, u16 words, u16 flags)
{
	return id | (u64)words << 32 | (u64)flags << 48;
}

/* Wakes the host. */
void ht_kick(struct ht_device *device)
{
	ht_register(device->control, device->geometry.kick, 0);
}

/*
 * Begins an emit. Returns its time in `now`, or -EBUSY, counted, if it interrupts another
 * one of this CPU.
 */
int ht_enter(struct ht_client *client, u64 *now)
{
	const struct ht_device *device = client->device;

	if (READ_ONCE(client->busy)) {
		local_inc(&client->lost_busy);
		return -EBUSY;
	}
	WRITE_ONCE(client->busy, true);
	barrier();
	/* After `busy`: an NMI before it has emitted earlier. */
	*now = ht_now(device);
	if (*now - client->last > device->pause) {
		/* The host may have stopped looking; or the clock was set back. */
		if (*now < client->last)
			*now = client->last;
		if (device->kicks)
			ht_kick(client->device);
	}
	return 0;
}

/* Ends an emit. */
void ht_leave(struct ht_client *client, u64 now)
{
	client->last = now;
	barrier();
	WRITE_ONCE(client->busy, false);
}

static u64 total_busy(const struct ht_client *client)
{
	return client->base_busy + (unsigned long)local_read(&client->lost_busy);
}

/* The first client's total has the events of CPUs that have none. */
static u64 total_unattached(const struct ht_client *client)
{
	return client->base_unattached +
	       (client->index ? 0 : atomic64_read(&client->device->unattached));
}

/* Returns true if a total is not published. For any CPU: a hint. */
bool ht_has_losses(const struct ht_client *client)
{
	return READ_ONCE(client->lost_full) != READ_ONCE(client->told_full) ||
	       total_busy(client) != READ_ONCE(client->told_busy) ||
	       total_unattached(client) != READ_ONCE(client->told_unattached);
}

/* Publishes the totals of dropped events that have changed. In an emit. */
void ht_publish_losses(struct ht_client *client)
{
	u64 busy = total_busy(client), unattached = total_unattached(client);

	if (client->lost_full != client->told_full) {
		client->told_full = client->lost_full;
		WRITE_ONCE(client->guest[HT_G_LOST_FULL], client->told_full);
	}
	if (busy != client->told_busy) {
		client->told_busy = busy;
		WRITE_ONCE(client->guest[HT_G_LOST_BUSY], busy);
	}
	if (unattached != client->told_unattached) {
		client->told_unattached = unattached;
		WRITE_ONCE(client->guest[HT_G_LOST_UNATTACHED], unattached);
	}
}

/* Publishes the totals outside of an emit, on the client's CPU. */
void ht_publish_idle(struct ht_client *client)
{
	if (READ_ONCE(client->busy))
		return;
	WRITE_ONCE(client->busy, true);
	barrier();
	ht_publish_losses(client);
	barrier();
	WRITE_ONCE(client->busy, false);
}

/* Appends a text to the log. Returns false if there is no room now. */
static bool append(struct ht_client *client, const struct ht_event *event)
{
	u64 capacity = client->device->geometry.schema_words, written = client->schema_len;
	u64 seen = virt_load_acquire(&client->host[HT_H_SCHEMA_SEEN]);
	u64 used = written > seen ? written - seen : 0;
	u64 words = 1 + DIV_ROUND_UP(event->length, HT_WORD), i;

	if (used > capacity || words > capacity - used)
		return false;
	for (i = 0; i < words; i++) {
		u64 word = event->id | (u64)event->length << 32;

		if (i) {
			u32 from = (i - 1) * HT_WORD;

			word = 0;
			memcpy(&word, event->text + from, min_t(u32, HT_WORD, event->length - from));
		}
		WRITE_ONCE(client->schema[(written + i) & (capacity - 1)], word);
	}
	ht_fence(client->device);
	client->schema_len = written + words;
	virt_store_release(&client->guest[HT_G_SCHEMA_LEN], client->schema_len);
	return true;
}

/*
 * Returns a slot of the table of known ids in which `id` may be: the first, the second, and so
 * on. Ids with the same first slot seldom have the same second one.
 */
static u32 *known_slot(struct ht_client *client, u32 id, u32 number)
{
	/* The step is odd, so it leads to each of the slots, whose number is a power of two. */
	return &client->known[(id + number * (id >> 16 | 1)) % HT_KNOWN];
}

/* Writes an event's text to the schema log unless this lease has done so. In an emit. */
void ht_announce(struct ht_client *client, const struct ht_event *event)
{
	u32 number = 0, *slot;

	do {
		slot = known_slot(client, event->id, number);
		if (*slot == event->id)
			return;
	} while (*slot && ++number < HT_KNOWN);
	/* The host knows no more texts. */
	if (client->known_len < HT_MAX_SCHEMAS && append(client, event)) {
		*slot = event->id;
		client->known_len++;
	}
}

/* Fills the words up to a block's end. A single word needs no pad. */
static void pad(struct ht_client *client, u64 from, u64 to)
{
	u64 words = to - from;

	if (words < HT_HEADER_WORDS)
		return;
	WRITE_ONCE(*at(client, from), 0);
	words = min_t(u64, words - HT_HEADER_WORDS, U16_MAX);
	WRITE_ONCE(*at(client, from + 1), meta(HT_ID_PAD, words, 0));
}

static void publish(struct ht_client *client, u64 head)
{
	ht_fence(client->device);
	virt_store_release(&client->guest[HT_G_HEAD], head);
	if (client->device->fenced)
		wmb();
	client->head = head;
}

/*
 * Has the head where the next record of `words` words begins, which may open a block. False: there
 * is no room, or it is too long for any block.
 */
static bool find_room(struct ht_client *client, u64 words, bool opens, bool commit)
{
	const struct ht_device *device = client->device;
	u64 capacity = device->geometry.ring_words, block = device->geometry.block_words;
	u64 head = client->head, start = head, end = head + words, limit = U64_MAX;

	if (words > min_t(u64, block - HT_BLOCK_HEADER_WORDS, HT_HEADER_WORDS + HT_MAX_WORDS))
		return false;
	opens |= head == block_start(client, head) || end > block_start(client, head) + block;
	if (opens) {
		/* The next begin of a block, or here. */
		start = block_start(client, head + block - 1);
		end = start + HT_BLOCK_HEADER_WORDS + words;
	}
	if (device->config.ring_mode == HT_DISCARD) {
		u64 reserve = capacity / HT_RESERVED_PART;
		u64 tail = virt_load_acquire(&client->host[HT_H_TAIL]);
		u64 used = end - tail;

		/* A tail beyond the end is the host's mistake: the ring counts as full. */
		if (tail > end)
			return false;
		if (used > capacity - (commit ? 0 : reserve))
			return false;
		if (device->kicks && opens && used >= capacity / 4)
			ht_kick(client->device);
		limit = tail + capacity - reserve;
	}
	if (opens) {
		/* The head is published before words of a block are overwritten. */
		ht_fence(device);
		pad(client, head, start);
		WRITE_ONCE(*at(client, start), client->sequence);
		WRITE_ONCE(*at(client, start + 1), client->token);
		client->head = start + HT_BLOCK_HEADER_WORDS;
	}
	client->limit = min(block_start(client, client->head) + block, limit);
	return true;
}

/* Writes the lease record if that has not happened. False: there is no room. */
static bool announce_lease(struct ht_client *client, u64 now, bool commit)
{
	u32 i;

	if (!client->fresh)
		return true;
	/* A block has the token of one lease. */
	if (!find_room(client, client->lease_words, true, commit))
		return false;
	/* A lease that found a full ring is announced later. */
	client->lease[0] = now;
	for (i = 0; i < client->lease_words; i++)
		WRITE_ONCE(*at(client, client->head + i), client->lease[i]);
	client->sequence++;
	client->fresh = false;
	publish(client, client->head + client->lease_words);
	return true;
}

/* Emits a record. Returns 0, or -EBUSY or -ENOSPC, counted. */
int ht_emit(struct ht_client *client, const struct ht_event *event, u16 flags, u32 words,
	    ht_put put, const void *arg)
{
	u64 now, *record;
	u64 all = HT_HEADER_WORDS + (u64)words;
	bool commit = flags & HT_REFERENCE_POINT;

	if (ht_enter(client, &now))
		return -EBUSY;
	ht_announce(client, event);
	if (client->head + all > client->limit) {
		ht_publish_losses(client);
		if (!announce_lease(client, now, commit) ||
		    !find_room(client, all, false, commit)) {
			client->lost_full++;
			ht_publish_losses(client);
			ht_leave(client, now);
			return -ENOSPC;
		}
	}
	/* In one block: no record crosses the ring's end. */
	record = at(client, client->head);
	WRITE_ONCE(record[0], now);
	WRITE_ONCE(record[1], meta(event->id, words, flags));
	put(record + HT_HEADER_WORDS, arg);
	client->sequence++;
	publish(client, client->head + all);
	ht_leave(client, now);
	return 0;
}

/* Stores words of a payload. */
void ht_put_words(u64 *to, const void *values, u32 words)
{
	const u64 *from = values;
	u32 i;

	for (i = 0; i < words; i++)
		WRITE_ONCE(to[i], from[i]);
}

/* Returns the sequence number after the block that `head` ends. Its words are hints. */
static u64 walk(const struct ht_client *client, u64 head)
{
	u64 start, sequence, i;

	if (!head)
		return 0;
	start = block_start(client, head - 1);
	sequence = READ_ONCE(*at(client, start));
	for (i = HT_BLOCK_HEADER_WORDS; i + HT_HEADER_WORDS <= head - start;) {
		u64 header = READ_ONCE(*at(client, start + i + 1));

		if ((u32)header == HT_ID_PAD)
			break;
		sequence++;
		i += HT_HEADER_WORDS + (u16)(header >> 32);
	}
	return sequence;
}

/* Makes the lease record of a client. */
static void describe(struct ht_client *client)
{
	char name[HT_LEASE_NAME + 1];
	u32 length = scnprintf(name, sizeof(name), "kernel %s/cpu%u", init_utsname()->release,
			       client->index);
	u64 *words = client->lease;

	memset(words, 0, sizeof(client->lease));
	client->lease_words = HT_HEADER_WORDS + 4 + DIV_ROUND_UP(4 + length, HT_WORD);
	words[1] = meta(HT_ID_LEASE, client->lease_words - HT_HEADER_WORDS, 0);
	words[2] = client->token;
	/* No process; the thread is the CPU. */
	words[3] = 0;
	words[4] = client->index;
	words[5] = client->device->counter ? HT_CLOCK_COUNTER : HT_CLOCK_MONOTONIC_RAW;
	memcpy(&words[6], &length, 4);
	memcpy((u8 *)&words[6] + 4, name, length);
}

static void attach(struct ht_client *client, struct ht_device *device, u32 index)
{
	const struct ht_geometry *g = &device->geometry;
	u8 *area = device->rings + HT_MASK_BYTES + index * g->client_stride;

	client->device = device;
	client->index = index;
	client->guest = (u64 *)area;
	client->host = (u64 *)(area + HT_PAGE);
	client->schema = (u64 *)(area + 2 * HT_PAGE);
	client->ring = client->schema + g->schema_words;
	client->control = device->control + g->control_pages + (u64)index * HT_PAGE;
}

static bool is_plausible(const struct ht_client *client, u64 head, u64 tail)
{
	const struct ht_device *device = client->device;

	return head <= MOST_HEAD && tail <= head &&
	       (device->config.ring_mode == HT_OVERWRITE ||
		head - tail <= device->geometry.ring_words);
}

/*
 * Returns true if the host has taken all that the last lessee of a client has left. A head that
 * cannot be is set to zero: the host counts that, and follows.
 */
static bool is_taken(struct ht_client *client)
{
	u64 head = virt_load_acquire(&client->guest[HT_G_HEAD]);
	u64 tail = virt_load_acquire(&client->host[HT_H_TAIL]);

	if (READ_ONCE(client->guest[HT_G_SCHEMA_LEN]) != READ_ONCE(client->host[HT_H_SCHEMA_SEEN]))
		return false;
	if (client->device->config.ring_mode == HT_OVERWRITE)
		return true;
	if (!is_plausible(client, head, tail))
		virt_store_release(&client->guest[HT_G_HEAD], 0);
	return is_plausible(client, head, tail) && head == tail;
}

static bool is_continued(u32 word)
{
	return word == HT_G_HEAD || word == HT_G_LOST_FULL || word == HT_G_LOST_BUSY ||
	       word == HT_G_LOST_UNATTACHED || word == HT_G_SCHEMA_LEN;
}

/*
 * Erases what the last lessee of a client has left, for a lessee of another user; all but the
 * sequence number and the totals, which the next lessee continues. The rings of a flight
 * recorder are kept: the host has not taken them. Returns false if it has not taken all of
 * another client yet. Sleeps, and takes long where rings are large.
 */
bool ht_erase(struct ht_device *device, u32 index)
{
	const struct ht_geometry *g = &device->geometry;
	bool keeps = device->config.ring_mode == HT_OVERWRITE;
	struct ht_client *client = kzalloc(sizeof(*client), GFP_KERNEL);
	u64 head, sequence, *registers, i;

	if (!client)
		return false;
	attach(client, device, index);
	if (!is_taken(client)) {
		/* It may have stopped looking. */
		if (device->kicks)
			ht_kick(client->device);
		kfree(client);
		return false;
	}
	head = READ_ONCE(client->guest[HT_G_HEAD]);
	sequence = walk(client, head);
	/* The ring follows the log, and may have 4 GiB. */
	for (i = 0; i < g->schema_words + (keeps ? 0 : g->ring_words); i += HT_PAGE / HT_WORD) {
		memset(client->schema + i, 0, HT_PAGE);
		cond_resched();
	}
	if (head && !keeps)
		WRITE_ONCE(*at(client, block_start(client, head - 1)), sequence);
	for (i = 0; i < HT_PAGE / HT_WORD; i++)
		if (!is_continued(i))
			WRITE_ONCE(client->guest[i], 0);
	registers = (u64 *)client->control;
	for (i = 0; !device->traps && i < HT_PAGE / HT_WORD; i++)
		WRITE_ONCE(registers[i], 0);
	/* The next point's number: one that the last lessee cannot have had answered before. */
	if (!device->traps)
		WRITE_ONCE(registers[HT_REGISTER_EMIT / HT_WORD], get_random_u32());
	wmb();
	kfree(client);
	return true;
}

/* Leases a client for a CPU, before anything emits. */
void ht_lease(struct ht_client *client, struct ht_device *device, u32 index)
{
	u64 head, tail;

	attach(client, device, index);
	do {
		client->token = get_random_u64();
	} while (!client->token);
	if (device->traps)
		ht_register(client->control, HT_REGISTER_LEASE, client->token);
	else
		/* A late reply to the last lessee must not look like one to this. */
		client->seq = READ_ONCE(*(u64 *)(client->control + HT_REGISTER_EMIT));

	head = virt_load_acquire(&client->guest[HT_G_HEAD]);
	tail = virt_load_acquire(&client->host[HT_H_TAIL]);
	/* The last lessee may have left nonsense: then begin at zero, which the host counts. */
	if (!is_plausible(client, head, tail)) {
		head = 0;
		virt_store_release(&client->guest[HT_G_HEAD], head);
	}
	WRITE_ONCE(client->guest[HT_G_COUNTER], HT_COUNTER_TSC);
	client->head = head;
	client->limit = 0;
	client->sequence = walk(client, head);
	client->fresh = true;
	client->last = ht_now(device);
	client->lost_full = client->told_full = READ_ONCE(client->guest[HT_G_LOST_FULL]);
	client->base_busy = client->told_busy = READ_ONCE(client->guest[HT_G_LOST_BUSY]);
	client->base_unattached = client->told_unattached =
		READ_ONCE(client->guest[HT_G_LOST_UNATTACHED]);
	client->schema_len = READ_ONCE(client->guest[HT_G_SCHEMA_LEN]);
	describe(client);
}
