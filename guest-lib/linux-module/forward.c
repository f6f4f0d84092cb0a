// SPDX-License-Identifier: GPL-2.0-only
/*
 * Forwards tracepoints that are given by name: a hit of a tracepoint becomes an event with the same
 * name and fields, in the ring of the CPU that hit the tracepoint.
 *
 * A perf counter on each CPU delivers a tracepoint's records in ftrace's layout. This layout
 * follows from the fields that the tracepoint declares. The counter's handler may run in any
 * context, NMIs included; perf drops the hits that the handler itself causes.
 */
#include <linux/cpumask.h>
#include <linux/ctype.h>
#include <linux/moduleparam.h>
#include <linux/mutex.h>
#include <linux/perf_event.h>
#include <linux/slab.h>
#include <linux/string.h>
#include <linux/trace_events.h>
#include <linux/tracepoint.h>

#include "module.h"

/* Maximum size of a string field in bytes. Longer strings are cut off. */
#define MAX_STRING 256
/* Maximum number of tracepoints that are forwarded at the same time. */
#define MAX_FORWARDED 64

enum kind { SIGNED, UNSIGNED, STRING, LOCATED, RELATIVE };

struct field {
	enum kind kind;
	u32 offset, size;
};

/* A tracepoint that is forwarded. */
struct forwarded {
	struct list_head list;
	struct trace_event_file *file;
	struct hypertrace_bare_event event;
	u32 count;
	struct field fields[HYPERTRACE_ABI_MAX_FIELDS];
	char text[HYPERTRACE_ABI_MAX_TEXT + 1];
	struct perf_event *counters[];
};

/* A record of a tracepoint, and the description of the fields in this record. */
struct occurrence {
	const struct forwarded *forwarded;
	const u8 *record;
	u32 size;
};

static DEFINE_MUTEX(forwarding);
static LIST_HEAD(all);
/* The names of tracepoints, as the user has set the parameter. */
static char *names;
static bool is_bound;

/* Finds the bytes of a string in the record. */
static const char *string(const struct occurrence *of, const struct field *field, u32 *length)
{
	u32 offset = field->offset, size = field->size, location;

	if (field->kind != STRING) {
		memcpy(&location, of->record + offset, sizeof(location));
		offset = (location & 0xffff) + (field->kind == RELATIVE ? offset + 4 : 0);
		size = location >> 16;
	}
	if (offset > of->size)
		offset = of->size;
	size = min3(size, of->size - offset, (u32)MAX_STRING);
	*length = strnlen(of->record + offset, size);
	return (const char *)of->record + offset;
}

static u32 words_of(const struct occurrence *of)
{
	u32 words = 0, i, length;

	for (i = 0; i < of->forwarded->count; i++) {
		const struct field *field = &of->forwarded->fields[i];

		if (field->kind >= STRING) {
			string(of, field, &length);
			words += hypertrace_bare_string_words(length);
		} else {
			words++;
		}
	}
	return words;
}

static u64 number(const u8 *at, const struct field *field)
{
	u64 word = 0;

	memcpy(&word, at, field->size);
	/* The size is 1, 2, 4 or 8, so the shift counts are 0 to 56. */
	if (field->kind == SIGNED)
		word = (s64)(word << (64 - 8 * field->size)) >> (64 - 8 * field->size);
	return word;
}

static void put_fields(volatile u64 *to, const struct occurrence *of)
{
	u32 i, length;

	for (i = 0; i < of->forwarded->count; i++) {
		const struct field *field = &of->forwarded->fields[i];

		if (field->kind >= STRING) {
			const char *text = string(of, field, &length);

			to += hypertrace_bare_put_string(to, text, length);
		} else {
			*to++ = number(of->record + field->offset, field);
		}
	}
}

static void emit(struct hypertrace_bare *client, const struct occurrence *of)
{
	u32 words = words_of(of);
	volatile u64 *payload = hypertrace_bare_begin(client, &of->forwarded->event, words, 0);

	if (payload) {
		put_fields(payload, of);
		hypertrace_bare_end(client, words);
	}
}

/* perf's handler, which runs on the CPU that hit the tracepoint, with preemption off. */
static void met(struct perf_event *counter, struct perf_sample_data *data, struct pt_regs *regs)
{
	const struct forwarded *forwarded = counter->overflow_handler_context;
	struct occurrence of = { .forwarded = forwarded };
	struct ht_device *device;
	struct ht_client *client;
	unsigned long flags;
	u32 i;

	if (!(data->sample_flags & PERF_SAMPLE_RAW) || !data->raw)
		return;
	of.record = data->raw->frag.data;
	of.size = data->raw->frag.size;
	for (i = 0; i < forwarded->count; i++)
		if (forwarded->fields[i].offset + forwarded->fields[i].size > of.size)
			return;
	raw_local_irq_save(flags);
	device = ht_current();
	if (device && !ht_is_off(device, forwarded->event.name_hash)) {
		client = ht_this_cpu(device);
		if (client)
			emit(&client->bare, &of);
	}
	raw_local_irq_restore(flags);
}

static bool is_name(const char *name)
{
	size_t length = strlen(name), i;

	if (!length || length > HYPERTRACE_ABI_MAX_NAME || isdigit(name[0]))
		return false;
	for (i = 0; i < length; i++)
		if (!isalnum(name[i]) && name[i] != '_')
			return false;
	return true;
}

/* Returns the field's type in a schema, or null if schemas have no such type. */
static const char *type_of(const struct trace_event_fields *from, struct field *field)
{
	static const char *const types[2][4] = {
		{ "i8", "i16", "i32", "i64" },
		{ "u8", "u16", "u32", "u64" },
	};

	field->size = from->size;
	if (strstr(from->type, "_loc ")) {
		field->kind = strstarts(from->type, "__rel_loc") ? RELATIVE : LOCATED;
		return from->size == 4 && strstr(from->type, "char") ? "str" : NULL;
	}
	if (strchr(from->type, '[')) {
		field->kind = STRING;
		return strstarts(from->type, "char[") ? "str" : NULL;
	}
	field->kind = from->is_signed ? SIGNED : UNSIGNED;
	if (from->size != 1 && from->size != 2 && from->size != 4 && from->size != 8)
		return NULL;
	if (strchr(from->type, '*') && from->size == 8) {
		field->kind = UNSIGNED;
		return "x64";
	}
	if (!strcmp(from->type, "bool") && from->size == 1)
		return "bool";
	return types[field->kind][ilog2(from->size)];
}

/*
 * Makes the schema from the fields that the tracepoint declares: the first 16 whose types and names
 * a schema can have.
 */
static int describe(struct forwarded *forwarded, struct trace_event_call *call)
{
	const struct trace_event_fields *from = call->class->fields_array;
	const char *name = trace_event_name(call);
	u32 offset = sizeof(struct trace_entry), length;
	size_t room = sizeof(forwarded->text);

	if (!is_name(name))
		return -EINVAL;
	length = scnprintf(forwarded->text, room, "%s(", name);
	for (; from && from->type && from->type != TRACE_FUNCTION_TYPE; from++) {
		struct field *field = &forwarded->fields[forwarded->count];
		const char *type;

		if (forwarded->count == HYPERTRACE_ABI_MAX_FIELDS)
			break;
		/* The offsets are computed as in the kernel's event_define_fields. */
		offset = ALIGN(offset, from->align);
		field->offset = offset;
		offset += from->size;
		type = type_of(from, field);
		if (!type || !is_name(from->name))
			continue;
		length += scnprintf(forwarded->text + length, room - length, "%s%s:%s",
				    forwarded->count ? "," : "", from->name, type);
		forwarded->count++;
	}
	scnprintf(forwarded->text + length, room - length, ")");
	forwarded->event = hypertrace_bare_event_of(forwarded->text);
	return 0;
}

static struct forwarded *find(const char *system, const char *name)
{
	struct forwarded *forwarded;
	struct trace_event_file *file;
	int error;

	forwarded = kzalloc(struct_size(forwarded, counters, nr_cpu_ids), GFP_KERNEL);
	if (!forwarded)
		return ERR_PTR(-ENOMEM);
	/* This call also keeps the tracepoint's module loaded. */
	file = trace_get_event_file(NULL, system, name);
	error = PTR_ERR_OR_ZERO(file);
	if (!error) {
		forwarded->file = file;
		error = describe(forwarded, file->event_call);
		if (error)
			trace_put_event_file(file);
	}
	if (error) {
		kfree(forwarded);
		return ERR_PTR(error);
	}
	return forwarded;
}

static void stop(struct list_head *list)
{
	struct forwarded *forwarded;
	unsigned int cpu;

	list_for_each_entry(forwarded, list, list) {
		for_each_possible_cpu(cpu) {
			if (forwarded->counters[cpu])
				perf_event_release_kernel(forwarded->counters[cpu]);
			forwarded->counters[cpu] = NULL;
		}
	}
	/* Waits for the handlers that are still running. */
	tracepoint_synchronize_unregister();
}

static void discard(struct list_head *list)
{
	struct forwarded *forwarded, *next;

	list_for_each_entry_safe(forwarded, next, list, list) {
		list_del(&forwarded->list);
		trace_put_event_file(forwarded->file);
		kfree(forwarded);
	}
}

/*
 * Finds the tracepoints of a list such as "sched:sched_switch,irq:irq_handler_entry". The function
 * names each unknown tracepoint in the kernel's log. If there is an unknown tracepoint and `skips`
 * is not set, the function returns an error.
 */
static int find_all(const char *text, struct list_head *list, bool skips)
{
	char *copy = kstrdup(text, GFP_KERNEL), *rest = copy, *word;
	int error = copy ? 0 : -ENOMEM, count = 0;

	while (!error && (word = strsep(&rest, ", \n"))) {
		char *name = strchr(word, ':');
		struct forwarded *forwarded;

		if (!*word)
			continue;
		if (name)
			*name++ = 0;
		if (count == MAX_FORWARDED)
			forwarded = ERR_PTR(-E2BIG);
		else
			forwarded = name ? find(word, name) : ERR_PTR(-EINVAL);
		if (!IS_ERR(forwarded)) {
			list_add_tail(&forwarded->list, list);
			count++;
			continue;
		}
		error = PTR_ERR(forwarded);
		pr_warn("hypertrace: no tracepoint %s%s%s: %d\n", word, name ? ":" : "",
			name ?: "", error);
		if (skips)
			error = 0;
	}
	kfree(copy);
	return error;
}

/* Starts a counter for each tracepoint on each CPU that is online now. */
static int start(struct list_head *list)
{
	struct forwarded *forwarded;
	unsigned int cpu;

	list_for_each_entry(forwarded, list, list) {
		struct perf_event_attr attr = {
			.type = PERF_TYPE_TRACEPOINT,
			.size = sizeof(attr),
			.config = forwarded->file->event_call->event.type,
			.sample_period = 1,
			.sample_type = PERF_SAMPLE_RAW,
		};

		for_each_online_cpu(cpu) {
			struct perf_event *counter;

			counter = perf_event_create_kernel_counter(&attr, cpu, NULL, met, forwarded);
			/* The CPU went offline. */
			if (PTR_ERR(counter) == -ENODEV)
				continue;
			if (IS_ERR(counter)) {
				pr_warn("hypertrace: cannot trace %s: %ld\n",
					trace_event_name(forwarded->file->event_call),
					PTR_ERR(counter));
				return PTR_ERR(counter);
			}
			forwarded->counters[cpu] = counter;
		}
	}
	return 0;
}

/*
 * Replaces the forwarded tracepoints. Unless `skips` is set, changes nothing if a tracepoint of the
 * list does not exist.
 */
static int replace(const char *text, bool skips)
{
	LIST_HEAD(next);
	int error = find_all(text, &next, skips);

	if (error) {
		discard(&next);
		return error;
	}
	stop(&all);
	discard(&all);
	list_splice(&next, &all);
	error = start(&all);
	if (error) {
		stop(&all);
		discard(&all);
	}
	return error;
}

static int set_events(const char *value, const struct kernel_param *param)
{
	char *copy = kstrdup(value, GFP_KERNEL);
	int error = 0;

	if (!copy)
		return -ENOMEM;
	/*
	 * Cuts off spaces at the end. Spaces at the beginning do no harm, because `find_all` skips
	 * empty names.
	 */
	strim(copy);
	mutex_lock(&forwarding);
	if (is_bound)
		error = replace(copy, false);
	/*
	 * If the counters could not be made, nothing is forwarded now, so the parameter becomes
	 * empty.
	 */
	if (error && list_empty(&all))
		*copy = 0;
	if (!error || !*copy)
		swap(names, copy);
	mutex_unlock(&forwarding);
	kfree(copy);
	return error;
}

static int get_events(char *buffer, const struct kernel_param *param)
{
	int length;

	mutex_lock(&forwarding);
	length = sysfs_emit(buffer, "%s\n", names ? names : "");
	mutex_unlock(&forwarding);
	return length;
}

static const struct kernel_param_ops events_ops = { .set = set_events, .get = get_events };
module_param_cb(events, &events_ops, NULL, 0644);
MODULE_PARM_DESC(events, "tracepoints to forward, such as sched:sched_switch,irq:irq_handler_entry");

/*
 * Begins to forward the tracepoints that the parameter names. Skips unknown tracepoints, because
 * nobody waits for an error.
 */
void ht_begin_forwarding(void)
{
	mutex_lock(&forwarding);
	is_bound = true;
	if (names && replace(names, true))
		pr_warn("hypertrace: nothing is forwarded: see the parameter events\n");
	mutex_unlock(&forwarding);
}

/* Returns when no tracepoint is forwarded any more. */
void ht_end_forwarding(void)
{
	mutex_lock(&forwarding);
	is_bound = false;
	stop(&all);
	discard(&all);
	mutex_unlock(&forwarding);
}

/* Ends the forwarding at the module's end. */
void ht_forward_exit(void)
{
	/* A late write to the parameter may still use `names`. */
	mutex_lock(&forwarding);
	kfree(names);
	names = NULL;
	mutex_unlock(&forwarding);
}
