/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 OR BSD-3-Clause */
/* Made by `cargo xtask header` from the crate hypertrace-abi. docs/abi.md says what they are. */
#ifndef HYPERTRACE_ABI_H
#define HYPERTRACE_ABI_H

#define HT_PAGE 0x1000
#define HT_MIN_BAR 0x10000
#define HT_MASK_BYTES 0x1000
#define HT_RESERVED_PART 0x10
#define HT_MAGIC 0x4543415254505948ULL
#define HT_VERSION 0x2
#define HT_OVERWRITE 0x1
#define HT_FEATURE_KICK 0x1
#define HT_FEATURE_TRAPS 0x4
#define HT_REGISTER_EMIT 0x0
#define HT_REGISTER_LEASE 0x10
#define HT_MARK_DISPLACEMENT 0x68547270
#define HT_G_HEAD 0x0
#define HT_G_COUNTER 0x1
#define HT_G_LOST_FULL 0x8
#define HT_G_LOST_BUSY 0x9
#define HT_G_SCHEMA_LEN 0x10
#define HT_G_SLOT 0x80
#define HT_SLOT_HEADER_WORDS 0x4
#define HT_H_TAIL 0x0
#define HT_H_SCHEMA_SEEN 0x1
#define HT_H_REPLY 0x10
#define HT_STATUS_RECORDED 0x0
#define HT_ID_PAD 0x0
#define HT_ID_LEASE 0x1
#define HT_ID_FIRST 0x10
#define HT_REFERENCE_POINT 0x1
#define HT_CLOCK_COUNTER 0x0
#define HT_COUNTER_TSC 0x100000000000000ULL
#define HT_PAUSE_MS 0xa
#define HT_FNV_START 0x811c9dc5
#define HT_MAX_FIELDS 0x10

#define HT_PCI_VENDOR 0x1af4
#define HT_PCI_DEVICE 0x10f0
#define HT_PCI_SUBSYSTEM 0x6874
#define HT_PCI_IVSHMEM 0x1110
#define HT_IVSHMEM_BAR 0x2
#define HT_BAR_CONFIG 0x0
#define HT_BAR_CONTROL 0x2
#define HT_BAR_RINGS 0x4
#define HT_LEGACY_SLOT_STRIDE_PER_ARG 0x40
#define HT_DISCARD 0x0
#define HT_CONFIG_BYTES 0x88
#define HT_FEATURE_APART 0x10
#define HT_IOCTL_LEASE 0xc004e700
#define HT_IOCTL_RELEASE 0x4004e701
#define HT_G_LOST_UNATTACHED 0xa
#define HT_SLOT_WORDS 0x100
#define HT_H_MASK_VERSION 0x9
#define HT_STATUS_FILTERED 0x1
#define HT_HEADER_WORDS 0x2
#define HT_MAX_WORDS 0x1000
#define HT_CLOCK_MONOTONIC_RAW 0x1
#define HT_MAX_NAME 0x40
#define HT_MAX_TEXT 0x4b2
#define HT_MAX_SCHEMAS 0x400
#define HT_PAGE_L 0x1000
#define HT_BELLS 0x2000
#define HT_L_STATE 0x80
#define HT_L_BOOT 0x100
#define HT_L_BOOT_SEEN 0x140
#define HT_L_END 0x180
#define HT_STATE_ENDED 0x2

#endif
