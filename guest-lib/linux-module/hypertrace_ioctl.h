/* SPDX-License-Identifier: GPL-2.0-only WITH Linux-syscall-note */
/*
 * /dev/hypertrace: a descriptor leases clients, and maps their pages.
 *
 * The file is the MMIO window of docs/abi.md. A mapping must be shared, and its descriptor open for
 * reading and writing. The mapping contains the pages of the clients that the descriptor has
 * leased, the page of KICK, and, read-only, the config page and the enable mask. In place of every
 * further page of the window, the mapping contains a private page of the descriptor. Neither the
 * host nor another descriptor sees this private page. The clients [0, vcpu_clients) belong to the
 * kernel. The config page has the number vcpu_clients.
 */
#ifndef HYPERTRACE_IOCTL_H
#define HYPERTRACE_IOCTL_H

#include <linux/ioctl.h>
#include <linux/types.h>

/* Value that asks for any free client in place of a client's number. */
#define HYPERTRACE_ANY 0xffffffffU

/*
 * Leases the client with this number, and stores the number. Changes nothing if the descriptor has
 * leased the client already. EBUSY: another descriptor has leased the client, all clients are
 * leased, or the client still has another user's events, which cannot be erased before the host has
 * taken them. EINVAL: programs may not lease a client with this number, or there is no such client.
 * ENODEV: the device is gone.
 */
#define HYPERTRACE_LEASE _IOWR(0xe7, 0x00, __u32)
/*
 * Gives the client with this number back. The last close of the descriptor gives back all its
 * clients.
 */
#define HYPERTRACE_RELEASE _IOW(0xe7, 0x01, __u32)

#endif
