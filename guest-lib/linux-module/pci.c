// SPDX-License-Identifier: GPL-2.0-only
/* Binding to the PCI function: the device, or the memory of an ivshmem. */
#include <linux/delay.h>
#include <linux/io.h>
#include <linux/mm.h>
#include <linux/module.h>
#include <linux/random.h>
#include <linux/slab.h>
#include <linux/vmalloc.h>

#include "module.h"

/* How long to wait until a segment's host has seen this boot. */
#define BOOT_MS 2000

/* One function at a time has the clients and /dev/hypertrace. */
static DEFINE_MUTEX(binding);
static struct ht_device *bound;

static bool is_segment(const struct pci_dev *pci)
{
	return pci->device == HT_PCI_IVSHMEM;
}

/* Returns true if the mapping's entry says write-back. */
static bool is_write_back(void *at)
{
	unsigned int level;
	pte_t *entry = lookup_address((unsigned long)at, &level);
	pteval_t other = level == PG_LEVEL_4K ? _PAGE_CACHE_MASK :
						_PAGE_PWT | _PAGE_PCD | _PAGE_PAT_LARGE;

	/* Type 0 is write-back. Where an MTRR forbids it, the entry has another type. */
	return entry && !(pte_flags(*entry) & other);
}

/* Maps memory: write-back, or write-combining with fences where that is refused. */
static void *map_memory(struct ht_device *device, phys_addr_t start, u64 size)
{
	void *at = (void __force *)ioremap_cache(start, size);

	if (at && is_write_back(at))
		return at;
	if (at)
		iounmap((void __force __iomem *)at);
	device->fenced = true;
	return (void __force *)ioremap_wc(start, size);
}

static phys_addr_t start_of(struct pci_dev *pci, int bar, u64 size)
{
	return pci_resource_flags(pci, bar) & IORESOURCE_MEM && pci_resource_len(pci, bar) >= size ?
		       pci_resource_start(pci, bar) : 0;
}

/* Copies and checks the config page. */
static int read_config(struct ht_device *device)
{
	struct pci_dev *pci = device->pci;
	phys_addr_t start = start_of(pci, is_segment(pci) ? HT_IVSHMEM_BAR : HT_BAR_CONFIG, HT_PAGE);
	void __iomem *page = start ? ioremap(start, HT_PAGE) : NULL;
	const char *why;

	if (!page)
		return -ENODEV;
	ht_read_config(&device->config, page);
	iounmap(page);
	why = ht_check_config(&device->config, &device->geometry);
	device->traps = device->config.features & HT_FEATURE_TRAPS;
	device->apart = device->config.features & HT_FEATURE_APART;
	if (!why && (is_segment(pci) ? device->traps || !device->apart : !device->traps))
		why = "it is of another kind of device";
	if (is_segment(pci) && !device->config.magic)
		dev_warn(&pci->dev,
			 "ivshmem without a server: start `hypertrace serve --file` first, then the VM\n");
	/* Any other ivshmem is somebody else's. */
	if (why && (!is_segment(pci) || device->config.magic == HT_MAGIC))
		dev_err(&pci->dev, "config page: %s\n", why);
	return why ? -ENODEV : 0;
}

static int map_segment(struct ht_device *device)
{
	const struct ht_geometry *g = &device->geometry;
	u64 size = g->offset[HT_RINGS] + g->used[HT_RINGS];
	phys_addr_t start = start_of(device->pci, HT_IVSHMEM_BAR, size);
	u8 *window = start ? map_memory(device, start, size) : NULL;
	int i;

	if (!start) {
		dev_err(&device->pci->dev,
			"its memory has %llu bytes, %llu are used: give the VM's memory backend the size that `hypertrace serve` has printed\n",
			(u64)pci_resource_len(device->pci, HT_IVSHMEM_BAR), size);
		return -EINVAL;
	}
	if (!window)
		return -ENOMEM;
	device->memory = window;
	device->local = window + HT_PAGE_L;
	device->control = window + g->offset[HT_CONTROL];
	device->rings = window + g->offset[HT_RINGS];
	for (i = 0; i < HT_REGIONS; i++)
		device->place[i] = start + g->offset[i];
	return 0;
}

static int map_device(struct ht_device *device)
{
	const struct ht_geometry *g = &device->geometry;
	struct pci_dev *pci = device->pci;
	phys_addr_t control = start_of(pci, HT_BAR_CONTROL, g->used[HT_CONTROL]);
	phys_addr_t rings = start_of(pci, HT_BAR_RINGS, g->used[HT_RINGS]);

	if (!control || !rings)
		return -ENODEV;
	device->registers = ioremap(control, g->used[HT_CONTROL]);
	device->memory = device->registers ? map_memory(device, rings, g->used[HT_RINGS]) : NULL;
	if (!device->memory)
		return -ENOMEM;
	device->control = (u8 __force *)device->registers;
	device->rings = device->memory;
	device->place[HT_CONTROL] = control;
	device->place[HT_RINGS] = rings;
	return 0;
}

static void unmap(struct ht_device *device)
{
	if (device->memory)
		iounmap((void __force __iomem *)device->memory);
	if (device->registers)
		iounmap(device->registers);
}

/*
 * Gives a segment's host a number of this boot, and waits until it knows: nothing of
 * before may be in the rings. Each binding has a number of its own.
 */
static int begin_boot(struct ht_device *device)
{
	u64 *boot = (u64 *)(device->local + HT_L_BOOT), number = get_random_u64() | 1;
	u64 *seen = (u64 *)(device->local + HT_L_BOOT_SEEN);
	int i;

	for (i = 0; i < BOOT_MS && !ht_has_ended(device); i++) {
		if (virt_load_acquire(seen) == number)
			return 0;
		virt_store_release(boot, number);
		if (device->fenced)
			wmb();
		usleep_range(1000, 1200);
	}
	if (ht_has_ended(device))
		dev_err(&device->pci->dev,
			"the segment's host has ended: start `hypertrace serve` anew, and then the VM\n");
	else
		dev_err(&device->pci->dev,
			"the segment's host does not answer: is `hypertrace serve` running?\n");
	return -ETIMEDOUT;
}

static char *clock;
module_param(clock, charp, 0444);
MODULE_PARM_DESC(clock, "tsc or monotonic_raw; default: the TSC unless the kernel has dropped it");

/* Returns true if the counter is one clock on all CPUs, as far as the kernel knows. */
static bool is_counter_usable(void)
{
	if (clock)
		return !strcmp(clock, "tsc");
	return boot_cpu_has(X86_FEATURE_TSC) && !check_tsc_unstable() &&
	       (boot_cpu_has(X86_FEATURE_HYPERVISOR) ||
		(boot_cpu_has(X86_FEATURE_CONSTANT_TSC) && boot_cpu_has(X86_FEATURE_NONSTOP_TSC)));
}

static void choose_clock(struct ht_device *device)
{
	u64 frequency = NSEC_PER_SEC;

	device->counter = is_counter_usable();
	if (device->counter)
		frequency = device->config.guest_frequency ?: 1000ULL * tsc_khz;
	/* Above half of all numbers are those of a clock that was set back. */
	device->pause = min_t(u64, div_u64(frequency, MSEC_PER_SEC) * HT_PAUSE_MS, S64_MAX);
}

/* Leases a client for each CPU: those that the host has set aside, or else the first ones. */
static int lease_clients(struct ht_device *device)
{
	u32 i, clients = device->geometry.clients, count = device->config.vcpu_clients;

	if (device->config.vcpu_clients >= clients)
		count = clients;
	if (!count)
		count = min(nr_cpu_ids, max(clients / 2, 1U));
	device->clients = vzalloc(array_size(count, sizeof(*device->clients)));
	if (!device->clients)
		return -ENOMEM;
	device->kernel_clients = count;
	for (i = 0; i < count; i++)
		ht_lease(&device->clients[i], device, i);
	/* Programs see the same device, without these clients. */
	*device->shown = device->config;
	device->shown->vcpu_clients = count;
	return 0;
}

/* Frees what programs' files use, after the last one. */
void ht_free(struct kref *kref)
{
	struct ht_device *device = container_of(kref, struct ht_device, kref);

	kfree(device->owners);
	kfree(device->users);
	free_page((unsigned long)device->shown);
	kvfree(device);
}

static struct ht_device *allocate(struct pci_dev *pci)
{
	struct ht_device *device = kvzalloc(sizeof(*device), GFP_KERNEL);

	if (!device)
		return NULL;
	kref_init(&device->kref);
	mutex_init(&device->lock);
	mutex_init(&device->erasing);
	INIT_LIST_HEAD(&device->files);
	device->pci = pci;
	device->shown = (void *)get_zeroed_page(GFP_KERNEL);
	if (device->shown)
		return device;
	kref_put(&device->kref, ht_free);
	return NULL;
}

static int begin(struct ht_device *device)
{
	struct pci_dev *pci = device->pci;
	int error;
	u32 i;

	error = read_config(device);
	if (error)
		return error;
	device->owners = kcalloc(device->geometry.clients, sizeof(*device->owners), GFP_KERNEL);
	device->users = kcalloc(device->geometry.clients, sizeof(*device->users), GFP_KERNEL);
	if (!device->owners || !device->users)
		return -ENOMEM;
	for (i = 0; i < device->geometry.clients; i++)
		device->users[i] = INVALID_UID;
	error = is_segment(pci) ? map_segment(device) : map_device(device);
	if (!error && device->apart)
		error = begin_boot(device);
	if (error)
		return error;
	device->kicks = device->traps && device->config.features & HT_FEATURE_KICK;
	choose_clock(device);
	error = lease_clients(device);
	if (error)
		return error;
	ht_begin_events(device);
	error = ht_begin_files(device);
	if (error)
		ht_end_events();
	return error;
}

static int probe(struct pci_dev *pci, const struct pci_device_id *id)
{
	struct ht_device *device;
	int bars = pci_select_bars(pci, IORESOURCE_MEM);
	int error = -ENOMEM;

	mutex_lock(&binding);
	if (bound) {
		mutex_unlock(&binding);
		return -EBUSY;
	}
	device = allocate(pci);
	if (!device)
		goto unlock;
	error = pci_enable_device_mem(pci);
	if (error)
		goto put;
	/* Exclusive: sysfs would map the pages of all clients. */
	error = pci_request_selected_regions_exclusive(pci, bars, "hypertrace");
	if (error)
		goto disable;
	error = begin(device);
	if (error)
		goto release;
	pci_set_drvdata(pci, device);
	bound = device;
	ht_begin_forwarding();
	mutex_unlock(&binding);
	dev_info(&pci->dev, "%u clients, %u of them the kernel's; memory %s, clock %s\n",
		 device->geometry.clients, device->kernel_clients,
		 device->fenced ? "write-combining" : "write-back",
		 device->counter ? "counter" : "monotonic_raw");
	return 0;

release:
	unmap(device);
	vfree(device->clients);
	pci_release_selected_regions(pci, bars);
disable:
	pci_disable_device(pci);
put:
	kref_put(&device->kref, ht_free);
unlock:
	mutex_unlock(&binding);
	return error;
}

static void remove(struct pci_dev *pci)
{
	struct ht_device *device = pci_get_drvdata(pci);

	mutex_lock(&binding);
	ht_end_forwarding();
	ht_end_files(device);
	ht_end_events();
	unmap(device);
	vfree(device->clients);
	pci_release_selected_regions(pci, pci_select_bars(pci, IORESOURCE_MEM));
	pci_disable_device(pci);
	bound = NULL;
	mutex_unlock(&binding);
	kref_put(&device->kref, ht_free);
}

static const struct pci_device_id ids[] = {
	{ PCI_DEVICE(HT_PCI_VENDOR, HT_PCI_DEVICE) },
	{ PCI_DEVICE(HT_PCI_VENDOR, HT_PCI_IVSHMEM) },
	/* A device id that a VMM has chosen. */
	{ PCI_DEVICE_SUB(HT_PCI_VENDOR, PCI_ANY_ID, HT_PCI_VENDOR, HT_PCI_SUBSYSTEM) },
	{}
};
MODULE_DEVICE_TABLE(pci, ids);

static struct pci_driver driver = {
	.name = "hypertrace",
	.id_table = ids,
	.probe = probe,
	.remove = remove,
};

static int __init begin_module(void)
{
	return pci_register_driver(&driver);
}

static void __exit end_module(void)
{
	pci_unregister_driver(&driver);
	ht_forward_exit();
}

module_init(begin_module);
module_exit(end_module);
MODULE_DESCRIPTION("Trace events from a guest, on its host's timeline");
MODULE_AUTHOR("The hypertrace project");
MODULE_LICENSE("GPL");
