// SPDX-License-Identifier: GPL-2.0-only
/*
 * When this module is loaded, it makes events and points in a process, with interrupts off, in a
 * softirq and in an interrupt. In NMIs, it makes events only. The NMIs interrupt a CPU in the middle
 * of its emits. The module logs the number of dropped events.
 *
 * With `alternate=N`, the module emits N events on one CPU, of two names in turn, and logs the
 * number of dropped events.
 */
#include <linux/completion.h>
#include <linux/cpu.h>
#include <linux/delay.h>
#include <linux/interrupt.h>
#include <linux/irq_work.h>
#include <linux/kthread.h>
#include <linux/module.h>
#include <asm/apic.h>
#include <asm/nmi.h>

#include "../hypertrace_kernel.h"

#define FIELDS "a:u64,b:u64,c:u64,d:u64,e:u64,f:u64,g:u64,h:u64,i:u64,j:u64,k:u64,l:u64,m:u64,n:u64,o:u64,p:u64"
#define STEPS 20000
#define NMIS 300

static HYPERTRACE_SITE(in_context, "in_context(context:u32,point:bool)");
static HYPERTRACE_SITE(stressed, "stressed(n:u64)");
static HYPERTRACE_SITE(in_nmi, "in_nmi(n:u64)");
static HYPERTRACE_SITE(no_schema, "no_schema");
/*
 * The ids of these two events are equal modulo 2,048, so both events have the same first slot in
 * every smaller table.
 */
static HYPERTRACE_SITE(left, "left(" FIELDS ")");
static HYPERTRACE_SITE(right, "right32(" FIELDS ")");

static uint alternate;
module_param(alternate, uint, 0);

enum context { PROCESS, INTERRUPTS_OFF, SOFTIRQ, INTERRUPT };

static atomic_t errors, nmis, nmis_dropped;
static atomic_long_t steps_dropped;
static DECLARE_COMPLETION(interrupted);
static DECLARE_COMPLETION(stepped);

static void emit_in(enum context context)
{
	u64 event[] = { context, 0 }, point[] = { context, 1 };
	int done;

	if (hypertrace_event(&in_context, event, 2))
		atomic_inc(&errors);
	done = hypertrace(&in_context, point, 2);
	/* -EIO says that a slow host has not answered. The host still records such a point. */
	if (done && done != -EIO)
		atomic_inc(&errors);
}

static void interrupt(struct irq_work *work)
{
	emit_in(INTERRUPT);
	complete(&interrupted);
}

static void softirq(struct tasklet_struct *tasklet)
{
	emit_in(SOFTIRQ);
}

static int met_nmi(unsigned int type, struct pt_regs *regs)
{
	u64 n = atomic_inc_return(&nmis);

	if (n > NMIS)
		return NMI_DONE;
	if (hypertrace_event(&in_nmi, &n, 1) == -EBUSY)
		atomic_inc(&nmis_dropped);
	return NMI_HANDLED;
}

/*
 * Sleeps from time to time, so that the host, which is slower than this loop, makes room in the
 * ring.
 */
static int step(void *unused)
{
	u64 n;

	for (n = 0; n < STEPS; n++) {
		if (hypertrace_event(&stressed, &n, 1))
			atomic_long_inc(&steps_dropped);
		if (n % 1000 == 999)
			usleep_range(3000, 4000);
	}
	complete(&stepped);
	return 0;
}

static struct irq_work work = IRQ_WORK_INIT_HARD(interrupt);
static DECLARE_TASKLET(tasklet, softirq);

static void emit_alternately(void)
{
	u64 values[16] = {};
	u32 n, dropped = 0;

	migrate_disable();
	for (n = 0; n < alternate; n++) {
		dropped += !!hypertrace_event(n % 2 ? &left : &right, values, ARRAY_SIZE(values));
		if (n % 1000 == 999)
			cond_resched();
	}
	migrate_enable();
	pr_info("hypertrace_test: of %u events dropped %u\n", alternate, dropped);
}

static int __init begin(void)
{
	unsigned long flags;
	struct task_struct *task;
	unsigned int cpu;
	int i;

	if (alternate) {
		emit_alternately();
		return 0;
	}
	emit_in(PROCESS);
	if (hypertrace_event(&no_schema, NULL, 0) != -EINVAL ||
	    hypertrace(&no_schema, NULL, 0) != -EINVAL)
		atomic_inc(&errors);
	/* The host needs time to take this point, because the next context uses the same slot. */
	msleep(50);
	local_irq_save(flags);
	emit_in(INTERRUPTS_OFF);
	local_irq_restore(flags);
	msleep(50);
	tasklet_schedule(&tasklet);
	msleep(50);
	irq_work_queue(&work);
	wait_for_completion(&interrupted);
	tasklet_kill(&tasklet);

	if (register_nmi_handler(NMI_LOCAL, met_nmi, 0, "hypertrace_test"))
		return -EBUSY;
	cpu = cpumask_last(cpu_online_mask);
	task = kthread_create_on_cpu(step, NULL, cpu, "hypertrace_test/%u");
	if (!IS_ERR(task)) {
		wake_up_process(task);
		for (i = 0; i < NMIS; i++) {
			apic->send_IPI_mask(cpumask_of(cpu), NMI_VECTOR);
			usleep_range(100, 200);
		}
		wait_for_completion(&stepped);
		msleep(50);
	}
	unregister_nmi_handler(NMI_LOCAL, "hypertrace_test");
	pr_info("hypertrace_test: errors %d, steps %d, dropped %ld, nmis %d, dropped %d\n",
		atomic_read(&errors), STEPS, atomic_long_read(&steps_dropped), atomic_read(&nmis),
		atomic_read(&nmis_dropped));
	return 0;
}

static void __exit end(void)
{
}

module_init(begin);
module_exit(end);
MODULE_DESCRIPTION("Emits in each context by hypertrace");
MODULE_LICENSE("GPL");
