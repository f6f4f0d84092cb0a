// SPDX-License-Identifier: GPL-2.0-only
/* Binding to the PCI function: the device, or the memory of an ivshmem. */
#include <linux/delay.h>
#include <linux/io.h>
#include <linux/mm.h>
#include <linux/module.h>
#include <linux/random.h>
#include <linux/slab.h>
#include <linux/utsname.h>
#include <linux/vmalloc.h>

#include "module.h"

/* Longest wait in milliseconds until a segment's host has seen the number of this boot. */
#define BOOT_MS 2000

/* Guards `bound`: only one PCI function at a time has the kernel's clients and /dev/hypertrace. */
static DEFINE_MUTEX(binding);
static struct ht_device *bound;

static bool is_segment(const struct pci_dev *pci)
{
	return pci->device == HYPERTRACE_ABI_PCI_IVSHMEM;
}

/* Returns true if the mapping's page table entry has the type write-back. */
static bool is_write_back(void *at)
{
	unsigned int level;
	pte_t *entry = lookup_address((unsigned long)at, &level);
	pteval_t other = level == PG_LEVEL_4K ? _PAGE_CACHE_MASK :
						_PAGE_PWT | _PAGE_PCD | _PAGE_PAT_LARGE;

	/* Type 0 is write-back. If an MTRR forbids write-back, the entry has another type. */
	return entry && !(pte_flags(*entry) & other);
}

/*
 * Maps memory as write-back. If the kernel refuses this type, maps the memory as write-combining,
 * and stores need fences.
 */
static void *map_memory(struct ht_device *device, phys_addr_t start, u64 size)
{
	void *at = (void __force *)ioremap_cache(start, size);

	device->bare.is_fenced = !at || !is_write_back(at);
	if (!device->bare.is_fenced)
		return at;
	if (at)
		iounmap((void __force __iomem *)at);
	return (void __force *)ioremap_wc(start, size);
}

static phys_addr_t start_of(struct pci_dev *pci, int bar, u64 size)
{
	return pci_resource_flags(pci, bar) & IORESOURCE_MEM && pci_resource_len(pci, bar) >= size ?
		       pci_resource_start(pci, bar) : 0;
}

/* Copies and checks the config page. In a valid page, every offset is inside its region. */
static int read_config(struct ht_device *device)
{
	struct pci_dev *pci = device->pci;
	const u64 *config = device->config;
	int bar = is_segment(pci) ? HYPERTRACE_ABI_IVSHMEM_BAR : HYPERTRACE_ABI_BAR_CONFIG;
	phys_addr_t start = start_of(pci, bar, PAGE_SIZE);
	void __iomem *page = start ? ioremap(start, PAGE_SIZE) : NULL;
	const char *why;

	if (!page)
		return -ENODEV;
	hypertrace_bare_copy_config_(device->config, (void __force *)page);
	iounmap(page);
	why = hypertrace_bare_describe_device_(&device->bare, config);
	device->traps = config[HYPERTRACE_ABI_CONFIG_FEATURES] & HYPERTRACE_ABI_FEATURE_TRAPS;
	device->remote = config[HYPERTRACE_ABI_CONFIG_FEATURES] & HYPERTRACE_ABI_FEATURE_REMOTE;
	if (!why && (is_segment(pci) ? device->traps || !device->remote : !device->traps))
		why = "it is of another kind of device";
	if (is_segment(pci) && !config[HYPERTRACE_ABI_CONFIG_MAGIC])
		dev_warn(&pci->dev,
			 "ivshmem without a server: start `hypertrace serve --file` first, then the VM\n");
	/*
	 * An ivshmem without the magic word belongs to another program, so the module reports no
	 * error for its page.
	 */
	if (why && (!is_segment(pci) || config[HYPERTRACE_ABI_CONFIG_MAGIC] == HYPERTRACE_ABI_MAGIC))
		dev_err(&pci->dev, "config page: %s\n", why);
	return why ? -ENODEV : 0;
}

static int map_segment(struct ht_device *device)
{
	const struct hypertrace_bare_device *g = &device->bare;
	u64 size = g->offset[HYPERTRACE_BARE_RINGS] + g->used[HYPERTRACE_BARE_RINGS];
	phys_addr_t start = start_of(device->pci, HYPERTRACE_ABI_IVSHMEM_BAR, size);
	u8 *window = start ? map_memory(device, start, size) : NULL;
	int i;

	if (!start) {
		dev_err(&device->pci->dev,
			"its memory has %llu bytes, %llu are used: give the VM's memory backend the size that `hypertrace serve` has printed\n",
			(u64)pci_resource_len(device->pci, HYPERTRACE_ABI_IVSHMEM_BAR), size);
		return -EINVAL;
	}
	if (!window)
		return -ENOMEM;
	device->memory = window;
	device->local = window + HYPERTRACE_ABI_PAGE_L;
	device->bare.control = window + g->offset[HYPERTRACE_BARE_CONTROL];
	device->bare.rings = (u64 *)(window + g->offset[HYPERTRACE_BARE_RINGS]);
	for (i = 0; i < HYPERTRACE_BARE_REGIONS; i++)
		device->place[i] = start + g->offset[i];
	return 0;
}

static int map_device(struct ht_device *device)
{
	const struct hypertrace_bare_device *g = &device->bare;
	struct pci_dev *pci = device->pci;
	u64 registers = g->used[HYPERTRACE_BARE_CONTROL], memory = g->used[HYPERTRACE_BARE_RINGS];
	phys_addr_t control = start_of(pci, HYPERTRACE_ABI_BAR_CONTROL, registers);
	phys_addr_t rings = start_of(pci, HYPERTRACE_ABI_BAR_RINGS, memory);

	if (!control || !rings)
		return -ENODEV;
	device->registers = ioremap(control, registers);
	device->memory = device->registers ? map_memory(device, rings, memory) : NULL;
	if (!device->memory)
		return -ENOMEM;
	device->bare.control = (u8 __force *)device->registers;
	device->bare.rings = device->memory;
	device->place[HYPERTRACE_BARE_CONTROL] = control;
	device->place[HYPERTRACE_BARE_RINGS] = rings;
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
 * Gives a segment's host a number for this boot, and waits until the host has seen the number. The
 * host first empties the rings, because the rings must not contain records of an earlier boot. Each
 * binding of the driver draws a new number.
 */
static int begin_boot(struct ht_device *device)
{
	u64 *boot = (u64 *)(device->local + HYPERTRACE_ABI_L_BOOT), number = get_random_u64() | 1;
	u64 *seen = (u64 *)(device->local + HYPERTRACE_ABI_L_BOOT_SEEN);
	int i;

	for (i = 0; i < BOOT_MS && !ht_has_ended(device); i++) {
		if (virt_load_acquire(seen) == number)
			return 0;
		virt_store_release(boot, number);
		if (device->bare.is_fenced)
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

static void lease(struct ht_device *device, u32 client)
{
	char name[HYPERTRACE_ABI_MAX_NAME + 1];
	u64 token;

	snprintf(name, sizeof(name), "kernel %s/cpu%u", init_utsname()->release, client);
	do {
		token = get_random_u64();
	} while (!token);
	hypertrace_bare_lease(&device->clients[client].bare, &device->bare, client, client, token, name);
}

/*
 * Leases a client for each CPU: the clients that the host has set aside for vCPUs, or else the
 * first clients.
 */
static int lease_clients(struct ht_device *device)
{
	u32 i, clients = device->bare.clients;
	u32 count = min_t(u64, device->config[HYPERTRACE_ABI_CONFIG_VCPU_CLIENTS], clients);

	if (!count)
		count = min(nr_cpu_ids, max(clients / 2, 1U));
	device->clients = vzalloc(array_size(count, sizeof(*device->clients)));
	if (!device->clients)
		return -ENOMEM;
	device->kernel_clients = count;
	for (i = 0; i < count; i++)
		lease(device, i);
	/* Programs see a copy of the config page in which these clients belong to vCPUs. */
	memcpy(device->shown, device->config, sizeof(device->config));
	device->shown[HYPERTRACE_ABI_CONFIG_VCPU_CLIENTS] = count;
	return 0;
}

/* Frees the memory that programs' open files use, after the last file is closed. */
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
	device->owners = kcalloc(device->bare.clients, sizeof(*device->owners), GFP_KERNEL);
	device->users = kcalloc(device->bare.clients, sizeof(*device->users), GFP_KERNEL);
	if (!device->owners || !device->users)
		return -ENOMEM;
	for (i = 0; i < device->bare.clients; i++)
		device->users[i] = INVALID_UID;
	error = is_segment(pci) ? map_segment(device) : map_device(device);
	if (!error && device->remote)
		error = begin_boot(device);
	if (error)
		return error;
	ht_choose_clock(device);
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
	/*
	 * The regions are exclusive, because a program could otherwise map the pages of all clients
	 * through sysfs.
	 */
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
	dev_info(&pci->dev, "%u clients, %u of them the kernel's; memory %s, clock %s (%s)\n",
		 device->bare.clients, device->kernel_clients,
		 device->bare.is_fenced ? "write-combining" : "write-back",
		 device->bare.clock == HYPERTRACE_ABI_CLOCK_COUNTER ? "counter" : "monotonic_raw",
		 ht_clock_reason(device));
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
	{ PCI_DEVICE(HYPERTRACE_ABI_PCI_VENDOR, HYPERTRACE_ABI_PCI_DEVICE) },
	{ PCI_DEVICE(HYPERTRACE_ABI_PCI_VENDOR, HYPERTRACE_ABI_PCI_IVSHMEM) },
	/* A VMM may have chosen another device id. */
	{ PCI_DEVICE_SUB(HYPERTRACE_ABI_PCI_VENDOR, PCI_ANY_ID, HYPERTRACE_ABI_PCI_VENDOR,
			 HYPERTRACE_ABI_PCI_SUBSYSTEM) },
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
