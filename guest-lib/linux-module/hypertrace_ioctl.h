/* SPDX-License-Identifier: GPL-2.0-only WITH Linux-syscall-note */
/*
 * /dev/hypertrace: a descriptor leases clients, and maps their pages.
 *
 * The file is the MMIO window of docs/abi.md. A mapping of it (shared, of a
 * descriptor that is open for reading and writing) has the pages of the clients
 * that the descriptor has leased, that of KICK, and the config page and the enable mask
 * read-only. All other pages are a page of the descriptor's own, which leads nowhere.
 * Clients [0, vcpu_clients) of the config page are the kernel's.
 */
#ifndef HYPERTRACE_IOCTL_H
#define HYPERTRACE_IOCTL_H

#include <linux/ioctl.h>
#include <linux/types.h>

/* In place of a client's number: one that is free. */
#define HYPERTRACE_ANY 0xffffffffU

/*
 * Leases the client with this number, and stores the number. Nothing changes if it is
 * the descriptor's already. EBUSY: it is another descriptor's, all are leased, or the
 * host has not taken another user's events from it yet, which are erased before.
 * EINVAL: there is no such client for programs. ENODEV: the device is gone.
 */
#define HYPERTRACE_LEASE _IOWR(0xe7, 0x00, __u32)
/* Gives the client with this number back; so does the last close of the descriptor. */
#define HYPERTRACE_RELEASE _IOW(0xe7, 0x01, __u32)

#endif
