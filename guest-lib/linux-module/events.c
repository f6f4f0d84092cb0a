// SPDX-License-Identifier: GPL-2.0-only
/*
 * The functions for kernel code, the device that these functions use, and the device's periodic
 * work.
 *
 * An emit turns interrupts off and takes no reference to the device. `ht_end_events` waits until
 * each CPU has handled an interrupt. After this wait, no emit uses the device any more, nor does an
 * NMI that interrupted an emit. Such a wait also covers code where RCU does not watch, such as the
 * idle loop. A caller that sleeps for an answer is in an SRCU section, for which `ht_end_events`
 * waits, too.
 */
#include <linux/export.h>
#include <linux/irqflags.h>
#include <linux/panic_notifier.h>
#include <linux/sched.h>
#include <linux/smp.h>
#include <linux/srcu.h>
#include <linux/string.h>

#include "module.h"

/* Period, in milliseconds, of the periodic work. The work is due even if no CPU emits. */
#define LOOK_MS 20

static struct ht_device *current_device;
DEFINE_STATIC_SRCU(waiting);

/*
 * Returns the device, or null if there is no device. The caller has turned interrupts off, or is in
 * a panic.
 */
struct ht_device *ht_current(void)
{
	/*
	 * The device was initialised before the store to this pointer, and later loads depend on
	 * the pointer.
	 */
	return READ_ONCE(current_device);
}

/*
 * Returns true if the module's private copy of the mask says that the host wants no event of this
 * name.
 */
bool ht_is_off(const struct ht_device *device, u32 name_hash)
{
	return READ_ONCE(device->mask[name_hash % HYPERTRACE_ABI_MASK_BYTES]);
}

/*
 * Copies the mask if the host shows a new version of the mask. Only one thread may call this at a
 * time.
 */
static void refresh_mask(struct ht_device *device)
{
	volatile u64 *host = device->clients[0].bare.host;
	u64 version = virt_load_acquire(&host[HYPERTRACE_ABI_H_MASK_VERSION]);
	const u8 *mask = (const u8 *)device->bare.rings;
	unsigned int i;

	if (version == device->mask_version || device->ended)
		return;
	for (i = 0; i < HYPERTRACE_ABI_MASK_BYTES; i++)
		WRITE_ONCE(device->mask[i], READ_ONCE(mask[i]));
	device->mask_version = version;
}

/* Switches all events off, for good: the host has ended. */
static void switch_off(struct ht_device *device)
{
	unsigned int i;

	WRITE_ONCE(device->ended, true);
	for (i = 0; i < HYPERTRACE_ABI_MASK_BYTES; i++)
		WRITE_ONCE(device->mask[i], 1);
}

/*
 * Returns this CPU's client. If this CPU has no client, the function adds the event to the first
 * client's total of events without a client, and returns null. The caller has turned interrupts
 * off.
 */
struct ht_client *ht_this_cpu(struct ht_device *device)
{
	u32 cpu = raw_smp_processor_id();

	if (cpu < device->kernel_clients)
		return &device->clients[cpu];
	atomic64_inc((atomic64_t *)&device->clients[0].bare.lost_unattached);
	return NULL;
}

/* Returns true if a text may be a schema: a name, and fields in parentheses. The host checks the rest. */
static bool is_schema(const char *text, u32 length)
{
	return length && text[length - 1] == ')' && strnchr(text, length, '(');
}

/*
 * Returns the event of a site, and fills in the site's id and hash at the first use. The event's id
 * is 0 if the text is no schema. If two CPUs fill in a site at the same time, both store the same
 * values.
 */
static struct hypertrace_bare_event describe(struct hypertrace_site *site)
{
	u32 id = READ_ONCE(site->id);

	if (!id) {
		struct hypertrace_bare_event event;

		if (!is_schema(site->text, site->length)) {
			pr_warn_once("hypertrace: no schema, as in name(field:u64): %s\n", site->text);
			return (struct hypertrace_bare_event){};
		}
		event = hypertrace_bare_event_of(site->text);
		WRITE_ONCE(site->name_hash, event.name_hash);
		smp_store_release(&site->id, event.id);
		return event;
	}
	return (struct hypertrace_bare_event){
		.text = site->text,
		.length = site->length,
		.id = id,
		.name_hash = READ_ONCE(site->name_hash),
	};
}

static bool is_possible(const struct hypertrace_site *site, unsigned int count)
{
	return site->length <= HYPERTRACE_ABI_MAX_TEXT && count <= HYPERTRACE_ABI_MAX_FIELDS;
}

int hypertrace_event(struct hypertrace_site *site, const u64 *values, unsigned int count)
{
	struct ht_device *device;
	unsigned long flags;
	int done = -ENODEV;

	if (WARN_ON_ONCE(!is_possible(site, count)))
		return -EINVAL;
	raw_local_irq_save(flags);
	device = ht_current();
	if (device) {
		struct hypertrace_bare_event event = describe(site);
		struct ht_client *client = NULL;

		done = event.id ? 0 : -EINVAL;
		if (!done && !ht_is_off(device, event.name_hash)) {
			client = ht_this_cpu(device);
			done = -ENOSPC;
		}
		if (client)
			done = ht_record(client, &event, values, count, 0);
	}
	raw_local_irq_restore(flags);
	return done;
}
EXPORT_SYMBOL_GPL(hypertrace_event);

/* Returns true if the caller may sleep, as far as the kernel knows. */
static bool may_sleep(void)
{
	return preemptible() && !rcu_preempt_depth() && get_current_state() == TASK_RUNNING;
}

int hypertrace(struct hypertrace_site *site, const u64 *values, unsigned int count)
{
	struct ht_client *client = NULL;
	struct ht_device *device;
	bool waits = may_sleep();
	unsigned long flags;
	int done = -ENODEV, section = 0;
	u32 asked = 0;

	if (WARN_ON_ONCE(!is_possible(site, count)))
		return -EINVAL;
	if (waits)
		section = srcu_read_lock(&waiting);
	raw_local_irq_save(flags);
	device = ht_current();
	if (device && !READ_ONCE(device->ended)) {
		struct hypertrace_bare_event event = describe(site);

		done = event.id ? -ENOSPC : -EINVAL;
		if (event.id)
			client = ht_this_cpu(device);
		if (client)
			done = ht_point(client, &event, values, count, &asked);
	}
	raw_local_irq_restore(flags);
	if (waits) {
		if (asked)
			done = ht_wait(client, asked);
		srcu_read_unlock(&waiting, section);
	}
	return done;
}
EXPORT_SYMBOL_GPL(hypertrace);

/*
 * Returns true if a client has a total that is not published. The result is a hint, because the
 * caller may be on any CPU.
 */
static bool has_losses(const struct hypertrace_bare *bare)
{
	return bare->lost_full != bare->guest[HYPERTRACE_ABI_G_LOST_FULL] ||
	       bare->lost_busy != bare->guest[HYPERTRACE_ABI_G_LOST_BUSY] ||
	       bare->lost_unattached != bare->guest[HYPERTRACE_ABI_G_LOST_UNATTACHED];
}

/* Runs on the client's CPU, in an interrupt. */
static void publish_losses(void *client)
{
	hypertrace_bare_publish_losses(client);
}

/*
 * Copies a changed mask, and publishes a CPU's losses if no later emit of this CPU has published
 * them. Wakes the host if a ring still has records that were there at the last look.
 */
static void look(struct work_struct *work)
{
	struct ht_device *device = container_of(to_delayed_work(work), struct ht_device, look);
	u32 i;

	if (device->remote && !device->ended && ht_has_ended(device)) {
		switch_off(device);
		dev_warn(&device->pci->dev,
			 "the host has ended: events are off; start `hypertrace serve` anew, and then the VM\n");
	}
	refresh_mask(device);
	for (i = 0; i < device->kernel_clients; i++)
		if (has_losses(&device->clients[i].bare))
			smp_call_function_single(i, publish_losses, &device->clients[i].bare, true);
	for (i = 0; !device->bare.overwrites && i < device->kernel_clients; i++) {
		struct ht_client *client = &device->clients[i];
		u64 before = client->looked_at;

		client->looked_at = READ_ONCE(client->bare.head);
		/*
		 * The vCPU of an emit may have stopped after the kick and before the store of the
		 * head. The host then did not see the record, and needs a second kick.
		 */
		if (before > client->bare.host[HYPERTRACE_ABI_H_TAIL])
			hypertrace_bare_wake_(&client->bare);
	}
	queue_delayed_work(system_power_efficient_wq, &device->look, msecs_to_jiffies(LOOK_MS));
}

static int panicked(struct notifier_block *block, unsigned long action, void *why)
{
	struct ht_device *device = ht_current();

	if (device)
		ht_panic_point(device, why ? why : "");
	return NOTIFY_DONE;
}

static struct notifier_block panic_block = { .notifier_call = panicked, .priority = INT_MAX };

/* Lets kernel code use this device, whose clients are leased. */
void ht_begin_events(struct ht_device *device)
{
	ht_prepare_panic(device);
	refresh_mask(device);
	smp_store_release(&current_device, device);
	INIT_DEFERRABLE_WORK(&device->look, look);
	queue_delayed_work(system_power_efficient_wq, &device->look, msecs_to_jiffies(LOOK_MS));
	atomic_notifier_chain_register(&panic_notifier_list, &panic_block);
}

/* Returns when no code uses the device any more. */
void ht_end_events(void)
{
	struct ht_device *device = current_device;
	u32 i;

	atomic_notifier_chain_unregister(&panic_notifier_list, &panic_block);
	WRITE_ONCE(current_device, NULL);
	kick_all_cpus_sync();
	synchronize_srcu(&waiting);
	cancel_delayed_work_sync(&device->look);
	for (i = 0; i < device->kernel_clients; i++)
		hypertrace_bare_publish_losses(&device->clients[i].bare);
}
