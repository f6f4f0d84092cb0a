// SPDX-License-Identifier: GPL-2.0-only
/*
 * /dev/hypertrace: see hypertrace_ioctl.h.
 *
 * A program controls the arguments of each call, the offsets of its mappings, and all
 * bytes of the pages that it may write. Only `erase` reads bytes that a program wrote: each byte
 * once, within bounds. The page's offset and the leases decide whether a file may access a page, at
 * the fault and again at the first store.
 *
 * The fault handler inserts all pages by page frame number, and at first read-only. The kernel
 * calls `pfn_mkwrite` before the first store to each page, also after mprotect. A page of a client
 * is removed from the file's mappings when the client's lease begins or ends. The fault handler
 * holds the file's `lock` while it decides about a page and inserts the page, so the removal also
 * finds pages that were inserted before the lease changed.
 *
 * Each file has its own list of mappings and its own lock, so a program that maps its file very
 * often does not delay other programs.
 */
#include <linux/cred.h>
#include <linux/fs.h>
#include <linux/io.h>
#include <linux/list.h>
#include <linux/mm.h>
#include <linux/module.h>
#include <linux/nospec.h>
#include <linux/random.h>
#include <linux/slab.h>
#include <linux/uaccess.h>
#include <linux/version.h>

#include "hypertrace_ioctl.h"
#include "module.h"

static_assert(HYPERTRACE_LEASE == HYPERTRACE_ABI_IOCTL_LEASE);
static_assert(HYPERTRACE_RELEASE == HYPERTRACE_ABI_IOCTL_RELEASE);

#define PAGE_WORDS (PAGE_SIZE / sizeof(u64))

/* An open file description. */
struct ht_file {
	struct ht_device *device;
	struct list_head list;
	/* The mappings of this file. */
	struct address_space space;
	/* Lock that is held from the decision on a page to the page's insertion. */
	struct mutex lock;
	/*
	 * True once this file's pages were removed because the device is gone. The fault handler
	 * looks at this flag. The device's `gone` is set too early for the fault handler: a ring's
	 * page must not be replaced while the program still has the device's page with the ring's
	 * head.
	 */
	bool gone;
	/* The user who opened the file. */
	kuid_t user;
	/* The page that a program gets in place of each page that the file may not reach. */
	void *scratch;
	/*
	 * The page that a program gets in place of the host's pages after the device is gone. This
	 * page is not `scratch`, because the program may have stored to `scratch`, and would read
	 * its own stores as the enable mask.
	 */
	void *zeros;
};

/* The access that a file has to a page of the window. */
enum access { OUT_OF_REACH, READABLE, WRITABLE };

/* The caller has the device's lock. */
static void set_owner(struct ht_device *device, u32 client, struct ht_file *file)
{
	WRITE_ONCE(device->owners[client], file);
}

static bool has_leased(const struct ht_file *file, u64 client)
{
	u32 clients = file->device->bare.clients;

	return client < clients &&
	       READ_ONCE(file->device->owners[array_index_nospec(client, clients)]) == file;
}

/* Returns the size in bytes of a client's area in the region of the rings. */
static u64 stride(const struct hypertrace_bare_device *device)
{
	return device->client_stride * sizeof(u64);
}

/* Decides which access the file has to a page of the window. The caller has the file's lock. */
static enum access access_of(const struct ht_file *file, u64 offset, phys_addr_t *at)
{
	const struct ht_device *device = file->device;
	const struct hypertrace_bare_device *g = &device->bare;
	int region = HYPERTRACE_BARE_REGIONS - 1;
	u64 client, part;

	while (region && offset < g->offset[region])
		region--;
	offset -= g->offset[region];
	if (offset >= g->used[region] && region != HYPERTRACE_BARE_CONFIG)
		return OUT_OF_REACH;
	*at = device->place[region] + offset;
	switch (region) {
	case HYPERTRACE_BARE_CONFIG:
		if (!offset) {
			*at = virt_to_phys(device->shown);
			return READABLE;
		}
		if (!device->remote)
			return OUT_OF_REACH;
		/*
		 * Every program may write all clients' bells, because a bell is only a hint: the
		 * host also looks at the client's slot.
		 */
		if (offset == HYPERTRACE_ABI_PAGE_L)
			return READABLE;
		return offset == HYPERTRACE_ABI_BELLS ? WRITABLE : OUT_OF_REACH;
	case HYPERTRACE_BARE_CONTROL:
		/*
		 * Every program may store to KICK. Below KICK are the registers of 2016, which all
		 * clients share.
		 */
		if (offset < g->registers)
			return device->traps && offset >= g->kick ? WRITABLE : OUT_OF_REACH;
		return has_leased(file, (offset - g->registers) / PAGE_SIZE) ? WRITABLE : OUT_OF_REACH;
	case HYPERTRACE_BARE_RINGS:
		if (offset < HYPERTRACE_ABI_MASK_BYTES)
			return READABLE;
		client = div64_u64_rem(offset - HYPERTRACE_ABI_MASK_BYTES, stride(g), &part);
		if (!has_leased(file, client))
			return OUT_OF_REACH;
		return part == PAGE_SIZE ? READABLE : WRITABLE;
	default:
		return OUT_OF_REACH;
	}
}

static vm_fault_t fault(struct vm_fault *vmf)
{
	struct ht_file *file = vmf->vma->vm_file->private_data;
	enum access access;
	phys_addr_t at;
	vm_fault_t done;

	mutex_lock(&file->lock);
	access = access_of(file, (u64)vmf->pgoff << PAGE_SHIFT, &at);
	if (access == OUT_OF_REACH || file->gone)
		at = virt_to_phys(access == READABLE ? file->zeros : file->scratch);
	done = vmf_insert_pfn(vmf->vma, vmf->address, at >> PAGE_SHIFT);
	mutex_unlock(&file->lock);
	return done;
}

/*
 * Handles the first store to a page. An earlier decision inserted this page, which may be gone by
 * now.
 */
static vm_fault_t store(struct vm_fault *vmf)
{
	struct ht_file *file = vmf->vma->vm_file->private_data;
	phys_addr_t at;
	enum access access;

	mutex_lock(&file->lock);
	access = access_of(file, (u64)vmf->pgoff << PAGE_SHIFT, &at);
	mutex_unlock(&file->lock);
	return access == READABLE ? VM_FAULT_SIGBUS : 0;
}

static const struct vm_operations_struct pages = { .fault = fault, .pfn_mkwrite = store };

static void change_flags(struct vm_area_struct *vma, vm_flags_t set, vm_flags_t clear)
{
#if LINUX_VERSION_CODE >= KERNEL_VERSION(6, 3, 0)
	vm_flags_mod(vma, set, clear);
#else
	vma->vm_flags = (vma->vm_flags | set) & ~clear;
#endif
}

static int map(struct file *filp, struct vm_area_struct *vma)
{
	struct ht_file *file = filp->private_data;
	u64 window = file->device->bare.window >> PAGE_SHIFT;

	/*
	 * A private mapping would copy pages, as would a shared mapping of a read-only descriptor.
	 */
	if (!(vma->vm_flags & VM_SHARED))
		return -EINVAL;
	if (vma->vm_flags & VM_EXEC)
		return -EPERM;
	if (vma->vm_pgoff > window || vma_pages(vma) > window - vma->vm_pgoff)
		return -EINVAL;
	change_flags(vma, VM_PFNMAP | VM_IO | VM_DONTCOPY | VM_DONTEXPAND | VM_DONTDUMP, VM_MAYEXEC);
	vma->vm_ops = &pages;
	return 0;
}

/* Removes a client's pages from the file's mappings. */
static void remove_pages(struct ht_file *file, u32 client)
{
	const struct hypertrace_bare_device *g = &file->device->bare;

	mutex_lock(&file->lock);
	unmap_mapping_range(&file->space,
			    g->offset[HYPERTRACE_BARE_CONTROL] + g->registers +
				    (u64)client * PAGE_SIZE,
			    PAGE_SIZE, 1);
	unmap_mapping_range(&file->space,
			    g->offset[HYPERTRACE_BARE_RINGS] + HYPERTRACE_ABI_MASK_BYTES +
				    client * stride(g),
			    stride(g), 1);
	mutex_unlock(&file->lock);
}

/*
 * Returns true if the host has taken all records and texts of a client's last holder. Sets an
 * impossible head to zero: the host counts a fault and continues at zero, too.
 */
static bool is_taken(struct hypertrace_bare *client)
{
	u64 head = virt_load_acquire(&client->guest[HYPERTRACE_ABI_G_HEAD]);
	u64 tail = virt_load_acquire(&client->host[HYPERTRACE_ABI_H_TAIL]);

	if (client->guest[HYPERTRACE_ABI_G_SCHEMA_LEN] != client->host[HYPERTRACE_ABI_H_SCHEMA_SEEN])
		return false;
	if (client->device->overwrites)
		return true;
	if (!hypertrace_bare_is_plausible_(client, head, tail)) {
		virt_store_release(&client->guest[HYPERTRACE_ABI_G_HEAD], 0);
		return false;
	}
	return head == tail;
}

static bool is_continued(u32 word)
{
	return word == HYPERTRACE_ABI_G_HEAD || word == HYPERTRACE_ABI_G_LOST_FULL ||
	       word == HYPERTRACE_ABI_G_LOST_BUSY || word == HYPERTRACE_ABI_G_LOST_UNATTACHED ||
	       word == HYPERTRACE_ABI_G_SCHEMA_LEN;
}

/*
 * Erases what the last holder has left in a client, before another user gets the client. Keeps the
 * sequence number and the totals, because the next holder continues them. Keeps the ring of a
 * flight recorder, because the host has not taken the ring's records. Returns false if the client
 * still has records or texts that the host must take, or if there is no memory. The function
 * sleeps, and takes long if the ring is large.
 */
static bool erase(struct ht_device *device, u32 index)
{
	const struct hypertrace_bare_device *g = &device->bare;
	struct hypertrace_bare *client = kzalloc(sizeof(*client), GFP_KERNEL);
	volatile u64 *registers;
	u64 head, sequence, i;

	if (!client)
		return false;
	hypertrace_bare_attach_(client, g, index);
	if (!is_taken(client)) {
		/* The host may have stopped looking at the rings. */
		hypertrace_bare_wake_(client);
		kfree(client);
		return false;
	}
	head = client->guest[HYPERTRACE_ABI_G_HEAD];
	sequence = hypertrace_bare_walk_(client, head);
	/*
	 * The ring follows the schema log. A ring may have 4 GiB, so other tasks get the CPU after
	 * each page.
	 */
	for (i = 0; i < g->schema_words + (g->overwrites ? 0 : g->ring_words); i += PAGE_WORDS) {
		memset((void *)(client->schema + i), 0, PAGE_SIZE);
		cond_resched();
	}
	if (head && !g->overwrites)
		*hypertrace_bare_word_(client, hypertrace_bare_block_start_(client, head - 1)) = sequence;
	for (i = 0; i < PAGE_WORDS; i++)
		if (!is_continued(i))
			client->guest[i] = 0;
	registers = hypertrace_bare_register_(client, 0);
	for (i = 0; !device->traps && i < PAGE_WORDS; i++)
		registers[i] = 0;
	/*
	 * The next reference point gets a random sequence number, because the last holder may have
	 * left a reply with a number that this holder chose.
	 */
	if (!device->traps)
		registers[HYPERTRACE_ABI_REGISTER_EMIT / sizeof(u64)] = get_random_u32();
	wmb();
	kfree(client);
	return true;
}

/*
 * Owner of a client while the module erases the client, or removes the client's pages from the last
 * holder's mappings.
 */
static struct ht_file nobody;

/*
 * Returns true if the file can get this free client. The caller has the device's lock. This
 * function releases the lock while it erases the client, because a ring may have 4 GiB.
 */
static bool is_ready(const struct ht_file *file, u32 client)
{
	struct ht_device *device = file->device;
	bool is_erased;

	if (uid_eq(device->users[client], file->user))
		return true;
	set_owner(device, client, &nobody);
	mutex_unlock(&device->lock);
	mutex_lock(&device->erasing);
	is_erased = !READ_ONCE(device->gone) && erase(device, client);
	mutex_unlock(&device->erasing);
	mutex_lock(&device->lock);
	set_owner(device, client, NULL);
	if (!is_erased || device->gone)
		return false;
	device->users[client] = file->user;
	return true;
}

/*
 * Finds the client with the number `wanted`, or any free client. Among the free clients, a client
 * that need not be erased comes first. The caller has the device's lock.
 */
static int choose(const struct ht_file *file, u32 wanted, u32 *client)
{
	const struct ht_device *device = file->device;
	bool erases;
	u32 i;

	if (device->gone)
		return -ENODEV;
	if (wanted != HYPERTRACE_ANY) {
		if (wanted < device->kernel_clients || wanted >= device->bare.clients)
			return -EINVAL;
		*client = wanted = array_index_nospec(wanted, device->bare.clients);
		if (device->owners[wanted])
			return device->owners[wanted] == file ? 0 : -EBUSY;
		return is_ready(file, wanted) ? 0 : -EBUSY;
	}
	for (erases = false;; erases = true) {
		for (i = device->kernel_clients; i < device->bare.clients; i++) {
			if (device->owners[i] ||
			    (!erases && !uid_eq(device->users[i], file->user)) || !is_ready(file, i))
				continue;
			*client = i;
			return 0;
		}
		if (erases)
			return device->gone ? -ENODEV : -EBUSY;
	}
}

static long control(struct file *filp, unsigned int command, unsigned long arg)
{
	struct ht_file *file = filp->private_data;
	struct ht_device *device = file->device;
	u32 __user *at = (u32 __user *)arg;
	u32 wanted, client = 0;
	bool is_new;
	int done;

	if (command != HYPERTRACE_LEASE && command != HYPERTRACE_RELEASE)
		return -ENOTTY;
	if (get_user(wanted, at))
		return -EFAULT;
	if (command == HYPERTRACE_RELEASE) {
		mutex_lock(&device->lock);
		done = has_leased(file, wanted) ? 0 : -EINVAL;
		if (!done) {
			wanted = array_index_nospec(wanted, device->bare.clients);
			set_owner(device, wanted, &nobody);
		}
		mutex_unlock(&device->lock);
		if (done)
			return done;
		remove_pages(file, wanted);
		mutex_lock(&device->lock);
		set_owner(device, wanted, NULL);
		mutex_unlock(&device->lock);
		return 0;
	}
	mutex_lock(&device->lock);
	done = choose(file, wanted, &client);
	is_new = !done && device->owners[client] != file;
	if (is_new)
		set_owner(device, client, file);
	mutex_unlock(&device->lock);
	if (is_new)
		remove_pages(file, client);
	/*
	 * If the client's number cannot be stored for the program, the lease ends when the
	 * descriptor is closed.
	 */
	if (!done && put_user(client, at))
		return -EFAULT;
	return done;
}

static int open(struct inode *inode, struct file *filp)
{
	struct ht_device *device = container_of(filp->private_data, struct ht_device, misc);
	struct ht_file *file = kzalloc(sizeof(*file), GFP_KERNEL_ACCOUNT);

	if (!file)
		return -ENOMEM;
	/* Two pages. */
	file->scratch = (void *)__get_free_pages(GFP_KERNEL_ACCOUNT | __GFP_ZERO, 1);
	if (!file->scratch) {
		kfree(file);
		return -ENOMEM;
	}
	file->zeros = file->scratch + PAGE_SIZE;
	address_space_init_once(&file->space);
	file->space.host = inode;
	file->space.a_ops = &empty_aops;
	filp->f_mapping = &file->space;
	mutex_init(&file->lock);
	file->user = filp->f_cred->euid;
	file->device = device;
	filp->private_data = file;
	/* The device cannot be freed here, because misc_deregister waits for this call. */
	kref_get(&device->kref);
	mutex_lock(&device->lock);
	list_add(&file->list, &device->files);
	mutex_unlock(&device->lock);
	return nonseekable_open(inode, filp);
}

/* The last descriptor and the last mapping are gone. */
static int release(struct inode *inode, struct file *filp)
{
	struct ht_file *file = filp->private_data;
	struct ht_device *device = file->device;
	u32 i;

	mutex_lock(&device->lock);
	list_del(&file->list);
	for (i = 0; i < device->bare.clients; i++)
		if (device->owners[i] == file)
			set_owner(device, i, NULL);
	mutex_unlock(&device->lock);
	free_pages((unsigned long)file->scratch, 1);
	kfree(file);
	kref_put(&device->kref, ht_free);
	return 0;
}

static const struct file_operations file_operations = {
	.owner = THIS_MODULE,
	.open = open,
	.release = release,
	.mmap = map,
	.unlocked_ioctl = control,
	.compat_ioctl = compat_ptr_ioctl,
};

/* Makes /dev/hypertrace. */
int ht_begin_files(struct ht_device *device)
{
	device->misc = (struct miscdevice){
		.minor = MISC_DYNAMIC_MINOR,
		.name = "hypertrace",
		.fops = &file_operations,
		.parent = &device->pci->dev,
		.mode = 0660,
	};
	return misc_register(&device->misc);
}

/* Takes the device's pages out of all mappings, for good. */
void ht_end_files(struct ht_device *device)
{
	struct ht_file *file;

	misc_deregister(&device->misc);
	mutex_lock(&device->lock);
	WRITE_ONCE(device->gone, true);
	list_for_each_entry(file, &device->files, list) {
		mutex_lock(&file->lock);
		file->gone = true;
		unmap_mapping_range(&file->space, 0, 0, 1);
		mutex_unlock(&file->lock);
	}
	mutex_unlock(&device->lock);
	/* Waits for a task that is erasing a client. A later task sees that the device is gone. */
	mutex_lock(&device->erasing);
	mutex_unlock(&device->erasing);
}
