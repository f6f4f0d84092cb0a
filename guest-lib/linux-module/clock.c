// SPDX-License-Identifier: GPL-2.0-only
/*
 * Chooses the clock of the kernel's events, by the same rules as the library for programs
 * (guest-lib/src/linux/clock.rs).
 */
#include "module.h"

#include <linux/cpu.h>
#include <linux/math64.h>
#include <linux/moduleparam.h>
#include <linux/slab.h>
#include <linux/smp.h>

/* Number of tries for each reading. Interruptions stretch a try, so the closest try is used. */
#define TRIES 32
/*
 * Longest step of CLOCK_MONOTONIC_RAW in nanoseconds: the step if the kernel derives this clock
 * from ACPI's timer.
 */
#define STEP_NS 280
/*
 * Maximum error of the readings in nanoseconds. Readings with a larger error cannot show that the
 * counters are one clock.
 */
#define MAX_ERROR_NS 10000
/* Maximum number of ticks per nanosecond. No counter is faster. */
#define MAX_TICKS 1000

static char *clock;
module_param(clock, charp, 0444);
MODULE_PARM_DESC(clock, "tsc or monotonic_raw; default: the TSC if it is one clock on all CPUs");

/*
 * A reading of a CPU's counter and of the clock. The clock was read between two readings of the
 * counter. The two readings are `width` ticks apart, and `ticks` is the middle between them.
 */
struct reading {
	u64 ticks, raw, width;
};

static void read_clocks(void *to)
{
	struct reading *closest = to;
	int i;

	closest->width = U64_MAX;
	for (i = 0; i < TRIES; i++) {
		u64 before = rdtsc(), raw = ktime_get_raw_ns(), width = rdtsc() - before;

		if (width < closest->width)
			*closest = (struct reading){ before + width / 2, raw, width };
	}
}

/* Compares readings of all CPUs. The last reading is a second reading of the first CPU. */
static u32 compare(const struct reading *readings, u32 count)
{
	const struct reading *first = readings, *last = &readings[count - 1];
	const u64 all_ticks = last->ticks - first->ticks, all_ns = last->raw - first->raw;
	const u64 of_ends = max(first->width, last->width);
	bool is_exact = true;
	u32 i;

	for (i = 1; i < count; i++)
		/*
		 * The ticks are compared before the clock. If the kernel derives the clock from
		 * each CPU's own counter, the counter and the clock may both go back. The reason is
		 * then that the counters differ.
		 */
		if (readings[i].ticks < readings[i - 1].ticks)
			return HYPERTRACE_ABI_REASON_DIFFERING;
	for (i = 1; i < count; i++)
		if (readings[i].raw < readings[i - 1].raw)
			return HYPERTRACE_ABI_REASON_DOUBTFUL;
	if (!all_ns || div64_u64(all_ticks, all_ns) > MAX_TICKS)
		return HYPERTRACE_ABI_REASON_DOUBTFUL;
	for (i = 0; i < count; i++) {
		const u64 ticks = readings[i].ticks - first->ticks, ns = readings[i].raw - first->raw;
		const u64 expected = mul_u64_u64_div_u64(ns, all_ticks, all_ns);
		const u64 off = ticks > expected ? ticks - expected : expected - ticks;
		const u64 error = mul_u64_u64_div_u64(STEP_NS, all_ticks, all_ns) +
			readings[i].width / 2 + of_ends / 2 + 1;

		if (off > error)
			return HYPERTRACE_ABI_REASON_DIFFERING;
		is_exact &= error <= mul_u64_u64_div_u64(MAX_ERROR_NS, all_ticks, all_ns);
	}
	return is_exact ? HYPERTRACE_ABI_REASON_AGREEING : HYPERTRACE_ABI_REASON_DOUBTFUL;
}

/*
 * Reads and compares the counters of all CPUs that are online. The module assumes that a CPU that
 * comes online later agrees with these CPUs.
 */
static u32 compare_cpus(void)
{
	struct reading *readings = kvcalloc(nr_cpu_ids + 1, sizeof(*readings), GFP_KERNEL);
	u32 cpu, count = 0, reason = HYPERTRACE_ABI_REASON_DOUBTFUL;
	int error = 0;

	if (!readings)
		return reason;
	cpus_read_lock();
	for_each_online_cpu(cpu)
		error |= smp_call_function_single(cpu, read_clocks, &readings[count++], 1);
	cpu = cpumask_first(cpu_online_mask);
	error |= smp_call_function_single(cpu, read_clocks, &readings[count++], 1);
	cpus_read_unlock();
	if (!error)
		reason = compare(readings, count);
	kvfree(readings);
	return reason;
}

/*
 * Returns true if QEMU emulates the CPUs. Emulated CPUs share one counter, even if the kernel has
 * found otherwise.
 */
static bool is_emulated(void)
{
	u32 most, name[3];

	if (!boot_cpu_has(X86_FEATURE_HYPERVISOR))
		return false;
	/*
	 * The module does not use the kernel's own function for CPUID, because the function's
	 * header is not the same in all releases.
	 */
	asm volatile("cpuid"
		     : "=a"(most), "=b"(name[0]), "=c"(name[1]), "=d"(name[2])
		     : "a"(0x40000000), "c"(0));
	return !memcmp(name, "TCGTCGTCGTCG", sizeof(name));
}

/*
 * Returns true if the module uses the counter as its clock, and stores the reason for this choice.
 */
static bool takes_counter(u32 *reason)
{
	const bool is_guest = boot_cpu_has(X86_FEATURE_HYPERVISOR);
	const bool is_steady = boot_cpu_has(X86_FEATURE_CONSTANT_TSC) &&
		boot_cpu_has(X86_FEATURE_NONSTOP_TSC);
	const bool may_be_usable = boot_cpu_has(X86_FEATURE_TSC) && (is_guest || is_steady);

	if (clock) {
		*reason = HYPERTRACE_ABI_REASON_NAMED;
		return !strcmp(clock, "tsc");
	}
	if (is_emulated()) {
		*reason = HYPERTRACE_ABI_REASON_EMULATED;
		return true;
	}
	if (may_be_usable && !check_tsc_unstable()) {
		*reason = HYPERTRACE_ABI_REASON_KEPT;
		return true;
	}
	*reason = may_be_usable && is_guest ? compare_cpus() : HYPERTRACE_ABI_REASON_DOUBTFUL;
	return *reason == HYPERTRACE_ABI_REASON_AGREEING;
}

void ht_choose_clock(struct ht_device *device)
{
	u64 frequency = device->config[HYPERTRACE_ABI_CONFIG_FREQUENCY] ?: 1000ULL * tsc_khz;

	if (!takes_counter(&device->bare.reason)) {
		device->bare.clock = HYPERTRACE_ABI_CLOCK_MONOTONIC_RAW;
		frequency = NSEC_PER_SEC;
	}
	device->bare.pause = div_u64(frequency, MSEC_PER_SEC) * HYPERTRACE_ABI_PAUSE_MS;
}

/*
 * Returns the reason for the choice of the clock, with the name that session.json uses for this
 * reason.
 */
const char *ht_clock_reason(const struct ht_device *device)
{
	switch (device->bare.reason) {
	case HYPERTRACE_ABI_REASON_NAMED:
		return "named";
	case HYPERTRACE_ABI_REASON_KEPT:
		return "kept";
	case HYPERTRACE_ABI_REASON_EMULATED:
		return "emulated";
	case HYPERTRACE_ABI_REASON_AGREEING:
		return "agreeing";
	case HYPERTRACE_ABI_REASON_DIFFERING:
		return "differing";
	default:
		return "doubtful";
	}
}
