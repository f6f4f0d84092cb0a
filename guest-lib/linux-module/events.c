// SPDX-License-Identifier: GPL-2.0-only
/*
 * The functions for kernel code, the device that they use, and its periodic work.
 *
 * An emit has interrupts off and holds no reference: `ht_end_events` waits until each CPU
 * has handled an interrupt, so no emit, and no NMI in one, uses the device any more. That
 * works in places where RCU does not watch, such as the idle loop. A caller that sleeps
 * for an answer is in an SRCU section besides.
 */
#include <linux/export.h>
#include <linux/irqflags.h>
#include <linux/panic_notifier.h>
#include <linux/sched.h>
#include <linux/smp.h>
#include <linux/srcu.h>
#include <linux/string.h>

#include "module.h"

/* Period of the work that is due even if no CPU emits. */
#define LOOK_MS 20

static struct ht_device *current_device;
DEFINE_STATIC_SRCU(waiting);

/* Returns the device, or null. The caller has interrupts off, or is in a panic. */
struct ht_device *ht_current(void)
{
	/* Its initialisation is before the store; the loads depend on the pointer. */
	return READ_ONCE(current_device);
}

/* Returns this CPU's client, or null, counted. The caller has interrupts off. */
struct ht_client *ht_this_cpu(struct ht_device *device)
{
	u32 cpu = raw_smp_processor_id();

	if (cpu < device->kernel_clients)
		return &device->clients[cpu];
	atomic64_inc(&device->unattached);
	return NULL;
}

struct values {
	const u64 *words;
	u32 count;
};

static void put_values(u64 *to, const void *arg)
{
	const struct values *values = arg;

	ht_put_words(to, values->words, values->count);
}

/* Returns true if a text may be a schema: a name, and fields in parentheses. The host checks the rest. */
static bool is_schema(const char *text, u32 length)
{
	return length && text[length - 1] == ')' && strnchr(text, length, '(');
}

/*
 * Fills what follows from the schema; the id is 0 if it is none. Two CPUs may do so at a time: they
 * store the same.
 */
static struct ht_event describe(struct hypertrace_site *site)
{
	u32 id = READ_ONCE(site->id);

	if (!id) {
		const char *end = strnchr(site->text, site->length, '(');

		if (!is_schema(site->text, site->length)) {
			pr_warn_once("hypertrace: no schema, as in name(field:u64): %s\n", site->text);
			return (struct ht_event){};
		}
		WRITE_ONCE(site->name_hash, ht_hash(HT_FNV_START, site->text, end - site->text));
		id = ht_id(site->text, site->length);
		smp_store_release(&site->id, id);
	}
	return (struct ht_event){
		.text = site->text,
		.length = site->length,
		.id = id,
		.name_hash = READ_ONCE(site->name_hash),
	};
}

static bool is_possible(const struct hypertrace_site *site, unsigned int count)
{
	return site->length <= HT_MAX_TEXT && count <= HT_MAX_FIELDS;
}

int hypertrace_event(struct hypertrace_site *site, const u64 *values, unsigned int count)
{
	struct values arg = { values, count };
	struct ht_device *device;
	unsigned long flags;
	int done = -ENODEV;

	if (WARN_ON_ONCE(!is_possible(site, count)))
		return -EINVAL;
	raw_local_irq_save(flags);
	device = ht_current();
	if (device) {
		struct ht_event event = describe(site);
		struct ht_client *client = NULL;

		done = event.id ? 0 : -EINVAL;
		if (!done && !ht_is_off(device, event.name_hash)) {
			client = ht_this_cpu(device);
			done = -ENOSPC;
		}
		if (client)
			done = ht_emit(client, &event, 0, count, put_values, &arg);
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
	struct values arg = { values, count };
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
		struct ht_event event = describe(site);

		done = event.id ? -ENOSPC : -EINVAL;
		if (event.id)
			client = ht_this_cpu(device);
		if (client)
			done = ht_point(client, &event, count, put_values, &arg, &asked);
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

/* On the client's CPU, in an interrupt. */
static void publish_losses(void *client)
{
	ht_publish_idle(client);
}

/*
 * Copies a changed mask, publishes losses that no later emit of their CPU has published, and
 * wakes the host for records that it has not taken.
 */
static void look(struct work_struct *work)
{
	struct ht_device *device = container_of(to_delayed_work(work), struct ht_device, look);
	u32 i;

	if (device->apart && !device->ended && ht_has_ended(device)) {
		ht_switch_off(device);
		dev_warn(&device->pci->dev,
			 "the host has ended: events are off; start `hypertrace serve` anew, and then the VM\n");
	}
	ht_refresh_mask(device);
	for (i = 0; i < device->kernel_clients; i++)
		if (ht_has_losses(&device->clients[i]))
			smp_call_function_single(i, publish_losses, &device->clients[i], true);
	for (i = 0; device->kicks && device->config.ring_mode == HT_DISCARD &&
	     i < device->kernel_clients; i++) {
		struct ht_client *client = &device->clients[i];
		u64 before = client->looked_at;

		client->looked_at = READ_ONCE(client->head);
		/* They were there at the last look: the CPU was lost between the kick and them. */
		if (before > READ_ONCE(client->host[HT_H_TAIL]))
			ht_kick(device);
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

/* Makes the device the one that kernel code uses. Its clients are leased. */
void ht_begin_events(struct ht_device *device)
{
	ht_prepare_panic(device);
	ht_refresh_mask(device);
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
		ht_publish_losses(&device->clients[i]);
}
