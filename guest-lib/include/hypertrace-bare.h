/*
 * hypertrace-bare.h: trace events from firmware and kernels, without a library and without libc.
 *
 *     struct hypertrace_bare_device device;
 *     struct hypertrace_bare client;
 *     if (hypertrace_bare_at_bars(&device, bar0, bar1, bar2, bar4) &&
 *         hypertrace_bare_lease(&client, &device, cpu, cpu, token, "boot")) {
 *         struct hypertrace_bare_event stage = hypertrace_bare_event_of("stage(n:u64)");
 *         uint64_t n = 1;
 *         hypertrace_bare_emit(&client, &stage, &n, 1);
 *         hypertrace_bare_point(&client, &stage, &n, 1, NULL);
 *     }
 *
 * The header works on x86-64 and AArch64, in C from C11 on and in C++ from C++17 on, freestanding or not,
 * with gcc or clang. Loads and stores of registers are single instructions that no compiler splits, merges or
 * repeats. No function waits or allocates.
 *
 * A client belongs to one CPU or thread. If an interrupt emits in the middle of an emit, the interrupt's
 * event is dropped and counted.
 *
 * A source may define these macros before it includes the header, as the module for Linux does
 * (guest-lib/linux-module):
 *
 *     HYPERTRACE_BARE_HAS_TYPES    the source defines uint64_t, bool, NULL, .. itself, without C's headers
 *     HYPERTRACE_BARE_NOW(device)  reads the clock that device->clock names, if not always the CPU's counter
 *     HYPERTRACE_BARE_FENCE()      orders earlier stores before later ones, also to memory that is not write-back
 *     HYPERTRACE_BARE_EVENTS       maximum number of a client's events with a text: a power of two, up to 1,024
 *
 * docs/c.md describes the use of this header.
 *
 * SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
 */

#ifndef HYPERTRACE_BARE_H
#define HYPERTRACE_BARE_H

#if !defined(__x86_64__) && !defined(__aarch64__)
#error "hypertrace-bare.h is for x86-64 and AArch64"
#endif
#if defined(__ILP32__) || defined(__AARCH64EB__)
#error "hypertrace-bare.h is for little-endian code with addresses of 64 bits"
#endif

#if !defined(HYPERTRACE_BARE_HAS_TYPES)
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#endif

/* Constants of docs/abi.md, by `cargo xtask header`. Indices are of words of 64 bits. */
#define HYPERTRACE_ABI_CONFIG_CLIENTS 0x0U
#define HYPERTRACE_ABI_CONFIG_ARGS 0x1U
#define HYPERTRACE_ABI_CONFIG_MAGIC 0x5U
#define HYPERTRACE_ABI_CONFIG_VERSION 0x6U
#define HYPERTRACE_ABI_CONFIG_FEATURES 0x7U
#define HYPERTRACE_ABI_CONFIG_SESSION 0x8U
#define HYPERTRACE_ABI_CONFIG_FREQUENCY 0xbU
#define HYPERTRACE_ABI_CONFIG_VCPU_CLIENTS 0xdU
#define HYPERTRACE_ABI_CONFIG_SCHEMA_SIZE 0xeU
#define HYPERTRACE_ABI_CONFIG_RING_SIZE 0xfU
#define HYPERTRACE_ABI_CONFIG_BLOCK_SIZE 0x10U
#define HYPERTRACE_ABI_CONFIG_TRACE_PARENT 0x11U
#define HYPERTRACE_ABI_CONFIG_WORDS 0x15U
#define HYPERTRACE_ABI_PAGE 0x1000U
#define HYPERTRACE_ABI_MIN_BAR 0x10000U
#define HYPERTRACE_ABI_MASK_BYTES 0x1000U
#define HYPERTRACE_ABI_RESERVED_PART 0x10U
#define HYPERTRACE_ABI_MAGIC 0x4543415254505948ULL
#define HYPERTRACE_ABI_VERSION 0x3U
#define HYPERTRACE_ABI_OVERWRITE 0x1U
#define HYPERTRACE_ABI_FEATURE_KICK 0x1U
#define HYPERTRACE_ABI_FEATURE_TRAPS 0x4U
#define HYPERTRACE_ABI_REGISTER_EMIT 0x0U
#define HYPERTRACE_ABI_REGISTER_LEASE 0x8U
#define HYPERTRACE_ABI_MARK_DISPLACEMENT 0x68547270U
#define HYPERTRACE_ABI_G_HEAD 0x0U
#define HYPERTRACE_ABI_G_COUNTER 0x1U
#define HYPERTRACE_ABI_G_LOST_FULL 0x8U
#define HYPERTRACE_ABI_G_LOST_BUSY 0x9U
#define HYPERTRACE_ABI_G_SCHEMA_LEN 0x10U
#define HYPERTRACE_ABI_G_SLOT 0x80U
#define HYPERTRACE_ABI_SLOT_HEADER_WORDS 0x4U
#define HYPERTRACE_ABI_H_TAIL 0x0U
#define HYPERTRACE_ABI_H_SCHEMA_SEEN 0x1U
#define HYPERTRACE_ABI_H_REPLY 0x10U
#define HYPERTRACE_ABI_STATUS_RECORDED 0x0U
#define HYPERTRACE_ABI_ID_PAD 0x0U
#define HYPERTRACE_ABI_ID_LEASE 0x1U
#define HYPERTRACE_ABI_ID_FIRST 0x10U
#define HYPERTRACE_ABI_REFERENCE_POINT 0x1U
#define HYPERTRACE_ABI_CLOCK_COUNTER 0x0U
#define HYPERTRACE_ABI_COUNTER_TSC 0x100000000000000ULL
#define HYPERTRACE_ABI_PAUSE_MS 0xaU
#define HYPERTRACE_ABI_FNV_START 0x811c9dc5U
#define HYPERTRACE_ABI_MAX_FIELDS 0x10U
#define HYPERTRACE_ABI_LEGACY_WORDS 0x8U
#define HYPERTRACE_ABI_MARK_IMMEDIATE 0x6874U
#define HYPERTRACE_ABI_H_REPLY_HOST_TIME 0x11U
#define HYPERTRACE_ABI_FNV_PRIME 0x1000193U
#define HYPERTRACE_ABI_COUNTER_CNTVCT 0x200000000000000ULL
#define HYPERTRACE_ABI_PCI_VENDOR 0x1af4U
#define HYPERTRACE_ABI_PCI_DEVICE 0x10f0U
#define HYPERTRACE_ABI_PCI_SUBSYSTEM 0x6874U
#define HYPERTRACE_ABI_PCI_IVSHMEM 0x1110U
#define HYPERTRACE_ABI_IVSHMEM_BAR 0x2U
#define HYPERTRACE_ABI_BAR_CONFIG 0x0U
#define HYPERTRACE_ABI_BAR_CONTROL 0x2U
#define HYPERTRACE_ABI_BAR_RINGS 0x4U
#define HYPERTRACE_ABI_FEATURE_REMOTE 0x10U
#define HYPERTRACE_ABI_IOCTL_LEASE 0xc004e700U
#define HYPERTRACE_ABI_IOCTL_RELEASE 0x4004e701U
#define HYPERTRACE_ABI_G_LOST_UNATTACHED 0xaU
#define HYPERTRACE_ABI_SLOT_WORDS 0x100U
#define HYPERTRACE_ABI_H_MASK_VERSION 0x9U
#define HYPERTRACE_ABI_STATUS_FILTERED 0x1U
#define HYPERTRACE_ABI_STATUS_FAILED 0x2U
#define HYPERTRACE_ABI_STATUS_INVALID 0x3U
#define HYPERTRACE_ABI_STATUS_LIMITED 0x4U
#define HYPERTRACE_ABI_MAX_WORDS 0x1000U
#define HYPERTRACE_ABI_CLOCK_MONOTONIC_RAW 0x1U
#define HYPERTRACE_ABI_MAX_NAME 0x40U
#define HYPERTRACE_ABI_MAX_TEXT 0x4b2U
#define HYPERTRACE_ABI_MAX_SCHEMAS 0x400U
#define HYPERTRACE_ABI_PAGE_L 0x1000U
#define HYPERTRACE_ABI_BELLS 0x2000U
#define HYPERTRACE_ABI_L_STATE 0x80U
#define HYPERTRACE_ABI_L_BOOT 0x100U
#define HYPERTRACE_ABI_L_BOOT_SEEN 0x140U
#define HYPERTRACE_ABI_L_END 0x180U
#define HYPERTRACE_ABI_REASON_SHIFT 0x30U
#define HYPERTRACE_ABI_REASON_NAMED 0x1U
#define HYPERTRACE_ABI_REASON_KEPT 0x2U
#define HYPERTRACE_ABI_REASON_EMULATED 0x3U
#define HYPERTRACE_ABI_REASON_AGREEING 0x4U
#define HYPERTRACE_ABI_REASON_DIFFERING 0x5U
#define HYPERTRACE_ABI_REASON_DOUBTFUL 0x6U
#define HYPERTRACE_ABI_STATE_ENDED 0x2U
/* End of the constants. */

/*
 * Maximum number of texts that a client sends; by default, as many as the host keeps. The host shows other
 * events as untyped.
 */
#if !defined(HYPERTRACE_BARE_EVENTS)
#define HYPERTRACE_BARE_EVENTS HYPERTRACE_ABI_MAX_SCHEMAS
#endif
#if HYPERTRACE_BARE_EVENTS == 0 || HYPERTRACE_BARE_EVENTS > HYPERTRACE_ABI_MAX_SCHEMAS || \
    (HYPERTRACE_BARE_EVENTS & (HYPERTRACE_BARE_EVENTS - 1)) != 0
#error "HYPERTRACE_BARE_EVENTS is a power of two, up to 1,024"
#endif

/* Regions of a device: BARs, or parts of a window. */
enum {
    HYPERTRACE_BARE_CONFIG,
    HYPERTRACE_BARE_DATA,
    HYPERTRACE_BARE_CONTROL,
    HYPERTRACE_BARE_RINGS,
    HYPERTRACE_BARE_REGIONS
};

/* A device, as its config page describes it. Offsets and sizes of memory are in words. */
struct hypertrace_bare_device {
    uint64_t *data;
    unsigned char *control;
    uint64_t *rings;
    /* Whether stores need fences, because the rings are not mapped write-back. The value is true, unless
       the caller sets the value to false. */
    bool is_fenced;
    bool overwrites;
    uint64_t features;
    uint32_t clients, args;
    /* Kind of the clock that lease records announce. Reason why this clock was chosen, 0 if unknown. */
    uint32_t clock, reason;
    /* Offsets in bytes of KICK and of the first client's registers. */
    uint64_t kick, registers;
    uint64_t client_stride, schema_words, ring_words, block_words, reserve_words;
    /* Longest pause, in ticks, after which an emit need not wake the host. */
    uint64_t pause;
    /* Sizes of the used parts of the regions, offsets of the regions in a window, and the window's size. All
       numbers are in bytes. */
    uint64_t used[HYPERTRACE_BARE_REGIONS], offset[HYPERTRACE_BARE_REGIONS], window;
};

/* A client: a ring, a slot and registers for one CPU or thread. */
struct hypertrace_bare {
    const struct hypertrace_bare_device *device;
    volatile uint64_t *guest, *host, *schema, *ring;
    uint32_t number, cpu, seq;
    volatile bool is_busy;
    bool is_fresh;
    uint64_t token, head, limit, sequence, last, schema_len;
    /* Totals of dropped events: those that found no room, those in the middle of another emit, and those of
       CPUs without a client, which the caller may add here. */
    volatile uint64_t lost_full, lost_busy, lost_unattached;
    uint64_t lease[2 + 4 + (4 + HYPERTRACE_ABI_MAX_NAME + 7) / 8];
    /* Ids of the events whose texts are in the schema log, and the number of these events. Half of the
       table's slots stay empty, so that a search ends soon. */
    uint32_t described, known[2 * HYPERTRACE_BARE_EVENTS];
};

/* An event. The event's text has the form name(field:type,field:type). */
struct hypertrace_bare_event {
    const char *text;
    uint32_t length, id, name_hash;
};

/* The host's answer to a reference point. */
struct hypertrace_bare_reply {
    /* One of HYPERTRACE_ABI_STATUS_. FAILED also means that the point was not made, or that the host has not
       answered. */
    uint32_t status;
    /* The host's raw counter, 0 if unknown. */
    uint64_t host_time;
};

/* Names that end with an underscore are only for this header and the module for Linux. */

/* Stores to a register with one marked instruction, which emulators' plugins recognise. */
static inline void hypertrace_bare_store_(void *to, uint64_t value) {
#if defined(__x86_64__)
    /* The text has both dialects of assembly, because -masm=intel selects the second. */
    __asm__ volatile("{movq %1, %c2(%0)|mov qword ptr [%0 + %c2], %1}"
                     :
                     : "r"((uintptr_t)to - HYPERTRACE_ABI_MARK_DISPLACEMENT), "r"(value),
                       "i"(HYPERTRACE_ABI_MARK_DISPLACEMENT)
                     : "memory");
#else
    __asm__ volatile("movz xzr, #%c2\n\tstr %1, [%0]"
                     :
                     : "r"(to), "r"(value), "i"(HYPERTRACE_ABI_MARK_IMMEDIATE)
                     : "memory");
#endif
}

/* Loads a word with one instruction, because the load may trap. */
static inline uint64_t hypertrace_bare_load_(const void *from) {
    uint64_t value;
#if defined(__x86_64__)
    __asm__ volatile("{movq (%1), %0|mov %0, qword ptr [%1]}" : "=r"(value) : "r"(from) : "memory");
#else
    __asm__ volatile("ldr %0, [%1]" : "=r"(value) : "r"(from) : "memory");
#endif
    return value;
}

/* Returns the CPU's counter. */
static inline uint64_t hypertrace_bare_ticks_(void) {
#if defined(__x86_64__)
    uint32_t low, high;
    __asm__ volatile("rdtsc" : "=a"(low), "=d"(high) : : "memory");
    return (uint64_t)high << 32 | low;
#else
    uint64_t ticks;
    __asm__ volatile("mrs %0, cntvct_el0" : "=r"(ticks) : : "memory");
    return ticks;
#endif
}

/* Returns the word of page G that describes the CPU's counter: the counter's kind and frequency. */
static inline uint64_t hypertrace_bare_counter_(void) {
#if defined(__x86_64__)
    return HYPERTRACE_ABI_COUNTER_TSC;
#else
    uint64_t frequency;
    __asm__("mrs %0, cntfrq_el0" : "=r"(frequency));
    return HYPERTRACE_ABI_COUNTER_CNTVCT | frequency;
#endif
}

#if !defined(HYPERTRACE_BARE_NOW)
#define HYPERTRACE_BARE_NOW(device) hypertrace_bare_ticks_()
#endif
#if !defined(HYPERTRACE_BARE_FENCE)
#define HYPERTRACE_BARE_FENCE() __atomic_thread_fence(__ATOMIC_SEQ_CST)
#endif

/* Orders earlier stores to shared memory before later stores. */
static inline void hypertrace_bare_order_(const struct hypertrace_bare_device *device) {
    if (device->is_fenced) {
        HYPERTRACE_BARE_FENCE();
    } else {
        __atomic_thread_fence(__ATOMIC_RELEASE);
    }
}

/* Stores to a shared word after all earlier stores. */
static inline void hypertrace_bare_publish_(const struct hypertrace_bare_device *device,
                                            volatile uint64_t *word, uint64_t value) {
    if (device->is_fenced) {
        HYPERTRACE_BARE_FENCE();
    }
    __atomic_store_n(word, value, __ATOMIC_RELEASE);
    if (device->is_fenced) {
        HYPERTRACE_BARE_FENCE();
    }
}

/* Adds 1 to a count. On x86-64, an interrupt may add to the same count at any time. */
static inline void hypertrace_bare_count_(volatile uint64_t *count) {
#if defined(__x86_64__)
    __asm__ volatile("{addq $1, (%0)|add qword ptr [%0], 1}" : : "r"(count) : "memory", "cc");
#else
    *count = *count + 1;
#endif
}

static inline void hypertrace_bare_barrier_(void) {
    __asm__ volatile("" : : : "memory");
}

static inline bool hypertrace_bare_is_size_(uint64_t size, uint64_t least, uint64_t most) {
    return (size & (size - 1)) == 0 && size >= least && size <= most;
}

static inline uint64_t hypertrace_bare_round_up_(uint64_t number, uint64_t unit) {
    return (number + unit - 1) / unit * unit;
}

/* Returns the size of a region in the window, given the size of its used part. */
static inline uint64_t hypertrace_bare_region_(uint64_t used) {
    uint64_t size = HYPERTRACE_ABI_MIN_BAR;
    while (size < used) {
        size *= 2;
    }
    return size;
}

/* Copies a config page word by word, because loads from the page may trap. */
static inline void hypertrace_bare_copy_config_(uint64_t *config, const void *page) {
    for (uint32_t i = 0; i < HYPERTRACE_ABI_CONFIG_WORDS; i++) {
        config[i] = hypertrace_bare_load_((const unsigned char *)page + 8 * i);
    }
}

/*
 * Fills in the device's members from a copy of a config page. Returns NULL, or the reason why the copy is no
 * valid config page according to docs/abi.md.
 */
static inline const char *hypertrace_bare_describe_device_(struct hypertrace_bare_device *device,
                                                           const uint64_t *config) {
    const uint64_t version = config[HYPERTRACE_ABI_CONFIG_VERSION];
    const uint64_t clients = config[HYPERTRACE_ABI_CONFIG_CLIENTS];
    const uint64_t args = config[HYPERTRACE_ABI_CONFIG_ARGS];
    const uint64_t frequency = config[HYPERTRACE_ABI_CONFIG_FREQUENCY];
    const uint64_t schema = config[HYPERTRACE_ABI_CONFIG_SCHEMA_SIZE];
    const uint64_t ring = config[HYPERTRACE_ABI_CONFIG_RING_SIZE];
    const uint64_t block = config[HYPERTRACE_ABI_CONFIG_BLOCK_SIZE];
    if (config[HYPERTRACE_ABI_CONFIG_MAGIC] != HYPERTRACE_ABI_MAGIC) {
        return "no hypertrace device: its magic is another";
    }
    if ((uint32_t)version != HYPERTRACE_ABI_VERSION) {
        return "unknown version of the interface";
    }
    if (version >> 32 > HYPERTRACE_ABI_OVERWRITE) {
        return "unknown ring mode";
    }
    if (clients == 0 || clients > 1024 || args == 0 || args > 16) {
        return "clients must be 1 to 1024, arguments 1 to 16";
    }
    if (!hypertrace_bare_is_size_(schema, 4096, 1 << 24) ||
        !hypertrace_bare_is_size_(ring, 4096, (uint64_t)1 << 32) ||
        !hypertrace_bare_is_size_(block, 256, 1 << 20) || block > ring / 16 ||
        clients * (2 * HYPERTRACE_ABI_PAGE + schema + ring) + HYPERTRACE_ABI_MASK_BYTES > (uint64_t)1 << 40) {
        return "a size is out of bounds";
    }
    device->is_fenced = true;
    device->overwrites = version >> 32 == HYPERTRACE_ABI_OVERWRITE;
    device->features = config[HYPERTRACE_ABI_CONFIG_FEATURES];
    device->clients = (uint32_t)clients;
    device->args = (uint32_t)args;
    device->clock = HYPERTRACE_ABI_CLOCK_COUNTER;
    device->reason = 0;
    /* KICK follows the registers of 2016. KICK and each client's registers have a page of their own. */
    device->kick = hypertrace_bare_round_up_(8 * clients, HYPERTRACE_ABI_PAGE);
    device->registers = device->kick + HYPERTRACE_ABI_PAGE;
    device->client_stride = (2 * HYPERTRACE_ABI_PAGE + schema + ring) / 8;
    device->schema_words = schema / 8;
    device->ring_words = ring / 8;
    device->block_words = block / 8;
    device->reserve_words = ring / 8 / HYPERTRACE_ABI_RESERVED_PART;
    /* If the frequency is unknown, the pause is 10 ms of a counter of 10 MHz. If 10 ms are too short, the
       emits only wake the host more often. */
    device->pause = frequency != 0 ? frequency / 1000 * HYPERTRACE_ABI_PAUSE_MS : 100000;
    device->used[HYPERTRACE_BARE_CONFIG] = HYPERTRACE_ABI_PAGE;
    device->used[HYPERTRACE_BARE_DATA] =
        hypertrace_bare_round_up_(8 * HYPERTRACE_ABI_LEGACY_WORDS * clients * args, HYPERTRACE_ABI_PAGE);
    device->used[HYPERTRACE_BARE_CONTROL] = device->registers + clients * HYPERTRACE_ABI_PAGE;
    device->used[HYPERTRACE_BARE_RINGS] = HYPERTRACE_ABI_MASK_BYTES + clients * device->client_stride * 8;
    device->window = 0;
    for (uint32_t i = 0; i < HYPERTRACE_BARE_REGIONS; i++) {
        device->offset[i] = device->window;
        device->window += hypertrace_bare_region_(device->used[i]);
    }
    return NULL;
}

/*
 * Looks for a device whose BARs 0, 1, 2 and 4 are mapped at these addresses. Returns false if there is no
 * device, or if the device has impossible sizes.
 */
static inline bool hypertrace_bare_at_bars(struct hypertrace_bare_device *device, const void *bar0,
                                           void *bar1, void *bar2, void *bar4) {
    uint64_t config[HYPERTRACE_ABI_CONFIG_WORDS];
    hypertrace_bare_copy_config_(config, bar0);
    device->data = (uint64_t *)bar1;
    device->control = (unsigned char *)bar2;
    device->rings = (uint64_t *)bar4;
    return hypertrace_bare_describe_device_(device, config) == NULL;
}

/*
 * Does the same as hypertrace_bare_at_bars for a device in an MMIO window, or a segment, that is
 * mapped at this address.
 */
static inline bool hypertrace_bare_at_window(struct hypertrace_bare_device *device, void *window) {
    unsigned char *base = (unsigned char *)window;
    if (!hypertrace_bare_at_bars(device, base, NULL, NULL, NULL)) {
        return false;
    }
    device->data = (uint64_t *)(base + device->offset[HYPERTRACE_BARE_DATA]);
    device->control = base + device->offset[HYPERTRACE_BARE_CONTROL];
    device->rings = (uint64_t *)(base + device->offset[HYPERTRACE_BARE_RINGS]);
    return true;
}

/* Returns whether the host handles stores to registers at once. */
static inline bool hypertrace_bare_traps(const struct hypertrace_bare_device *device) {
    return (device->features & HYPERTRACE_ABI_FEATURE_TRAPS) != 0;
}

/* Returns the address of one of a client's registers. */
static inline void *hypertrace_bare_register_(const struct hypertrace_bare *client, uint64_t offset) {
    const struct hypertrace_bare_device *device = client->device;
    return device->control + device->registers + client->number * (uint64_t)HYPERTRACE_ABI_PAGE + offset;
}

/* Asks the host to take the records of all rings soon. */
static inline void hypertrace_bare_kick(const struct hypertrace_bare *client) {
    if (hypertrace_bare_traps(client->device)) {
        hypertrace_bare_store_(client->device->control + client->device->kick, 0);
    }
}

/* Wakes a host that may have stopped looking at rings. */
static inline void hypertrace_bare_wake_(const struct hypertrace_bare *client) {
    if ((client->device->features & HYPERTRACE_ABI_FEATURE_KICK) != 0) {
        hypertrace_bare_kick(client);
    }
}

static inline volatile uint64_t *hypertrace_bare_word_(const struct hypertrace_bare *client,
                                                       uint64_t position) {
    return &client->ring[position & (client->device->ring_words - 1)];
}

static inline uint64_t hypertrace_bare_block_start_(const struct hypertrace_bare *client,
                                                    uint64_t position) {
    return position & ~(client->device->block_words - 1);
}

/* Returns the second word of a record's header. */
static inline uint64_t hypertrace_bare_meta_(uint32_t id, uint64_t words, uint64_t flags) {
    return id | words << 32 | flags << 48;
}

/* Returns the sequence number of the next record. */
static inline uint64_t hypertrace_bare_walk_(const struct hypertrace_bare *client, uint64_t head) {
    if (head == 0) {
        return 0;
    }
    const uint64_t start = hypertrace_bare_block_start_(client, head - 1);
    uint64_t sequence = *hypertrace_bare_word_(client, start);
    /* Each turn of the loop advances by at least two words, so the loop ends within a block. */
    for (uint64_t at = start + 2; at + 2 <= head;) {
        const uint64_t meta = *hypertrace_bare_word_(client, at + 1);
        if ((uint32_t)meta == HYPERTRACE_ABI_ID_PAD) {
            break;
        }
        sequence++;
        at += 2 + (meta >> 32 & 0xffff);
    }
    return sequence;
}

/* Returns whether the head that a client's last holder has left is possible, given this tail. */
static inline bool hypertrace_bare_is_plausible_(const struct hypertrace_bare *client, uint64_t head,
                                                 uint64_t tail) {
    /* At a word per nanosecond, the head reaches this bound after 36 years. */
    return tail <= head && head < (uint64_t)1 << 60 &&
           (client->device->overwrites || head - tail <= client->device->ring_words);
}

/* Sets a client's pointers to the client's memory. */
static inline void hypertrace_bare_attach_(struct hypertrace_bare *client,
                                           const struct hypertrace_bare_device *device, uint32_t number) {
    volatile uint64_t *area = device->rings + HYPERTRACE_ABI_MASK_BYTES / 8 + number * device->client_stride;
    client->device = device;
    client->number = number;
    client->guest = area;
    client->host = area + HYPERTRACE_ABI_PAGE / 8;
    client->schema = area + 2 * HYPERTRACE_ABI_PAGE / 8;
    client->ring = client->schema + device->schema_words;
}

/* Returns the number of words of a str field whose string has `length` bytes. */
static inline uint32_t hypertrace_bare_string_words(uint32_t length) {
    return (4 + length + 7) / 8;
}

/* Stores the words of a field of type str. Returns the number of words. */
static inline uint32_t hypertrace_bare_put_string(volatile uint64_t *to, const char *text,
                                                  uint32_t length) {
    uint64_t word = length;
    uint32_t at = 4;
    for (uint32_t i = 0; i < length; i++, at++) {
        if (at % 8 == 0) {
            to[at / 8 - 1] = word;
            word = 0;
        }
        word |= (uint64_t)(unsigned char)text[i] << (at % 8 * 8);
    }
    to[(at - 1) / 8] = word;
    return hypertrace_bare_string_words(length);
}

/*
 * Leases client `number` of the device, which must have no other holder. Kernels and firmware lease the
 * client with the CPU's number. `token` is a nonzero number that no other holder has. The host shows `cpu`
 * with reference points. The name is cut to 64 bytes. Returns false if there is no such client, or if `token`
 * is 0.
 */
static inline bool hypertrace_bare_lease(struct hypertrace_bare *client,
                                         const struct hypertrace_bare_device *device, uint32_t number,
                                         uint32_t cpu, uint64_t token, const char *name) {
    if (number >= device->clients || token == 0) {
        return false;
    }
    hypertrace_bare_attach_(client, device, number);
    client->cpu = cpu;
    client->token = token;
    client->is_busy = false;
    client->is_fresh = true;
    /* The points' numbers go on after the last holder's numbers, so that a late answer to the last holder is
       not taken for an answer to this holder. */
    if (hypertrace_bare_traps(device)) {
        hypertrace_bare_store_(hypertrace_bare_register_(client, HYPERTRACE_ABI_REGISTER_LEASE), token);
        client->seq = (uint32_t)client->host[HYPERTRACE_ABI_H_REPLY];
    } else {
        const void *emit = hypertrace_bare_register_(client, HYPERTRACE_ABI_REGISTER_EMIT);
        client->seq = (uint32_t)hypertrace_bare_load_(emit);
    }
    client->head = __atomic_load_n(&client->guest[HYPERTRACE_ABI_G_HEAD], __ATOMIC_ACQUIRE);
    const uint64_t tail = __atomic_load_n(&client->host[HYPERTRACE_ABI_H_TAIL], __ATOMIC_ACQUIRE);
    if (!hypertrace_bare_is_plausible_(client, client->head, tail)) {
        /* The host counts a fault, and continues at zero, too. */
        client->head = 0;
        __atomic_store_n(&client->guest[HYPERTRACE_ABI_G_HEAD], 0, __ATOMIC_RELEASE);
    }
    client->guest[HYPERTRACE_ABI_G_COUNTER] =
        hypertrace_bare_counter_() | (uint64_t)device->reason << HYPERTRACE_ABI_REASON_SHIFT;
    client->sequence = hypertrace_bare_walk_(client, client->head);
    client->limit = 0;
    client->lost_full = client->guest[HYPERTRACE_ABI_G_LOST_FULL];
    client->lost_busy = client->guest[HYPERTRACE_ABI_G_LOST_BUSY];
    client->lost_unattached = client->guest[HYPERTRACE_ABI_G_LOST_UNATTACHED];
    client->schema_len = client->guest[HYPERTRACE_ABI_G_SCHEMA_LEN];
    client->described = 0;
    for (uint32_t i = 0; i < 2 * HYPERTRACE_BARE_EVENTS; i++) {
        client->known[i] = 0;
    }

    /* The record of the lease. */
    uint32_t length = 0;
    while (length < HYPERTRACE_ABI_MAX_NAME && name[length] != 0) {
        length++;
    }
    const uint32_t words = 4 + hypertrace_bare_put_string(&client->lease[6], name, length);
    client->lease[1] = hypertrace_bare_meta_(HYPERTRACE_ABI_ID_LEASE, words, 0);
    client->lease[2] = token;
    client->lease[3] = 0;
    client->lease[4] = cpu;
    client->lease[5] = device->clock;
    client->last = HYPERTRACE_BARE_NOW(device);
    return true;
}

/*
 * Describes an event. The text must stay at its address. If the text is invalid, the host shows the
 * event as untyped.
 */
static inline struct hypertrace_bare_event hypertrace_bare_event_of(const char *text) {
    struct hypertrace_bare_event event = {text, 0, HYPERTRACE_ABI_FNV_START, 0};
    for (; text[event.length] != 0; event.length++) {
        if (text[event.length] == '(' && event.name_hash == 0) {
            event.name_hash = event.id;
        }
        event.id = (event.id ^ (unsigned char)text[event.length]) * HYPERTRACE_ABI_FNV_PRIME;
    }
    if (event.id < HYPERTRACE_ABI_ID_FIRST) {
        event.id |= 0x80000000U;
    }
    return event;
}

/* Writes an event's text to the schema log, before the event's first record. */
static inline void hypertrace_bare_describe_(struct hypertrace_bare *client,
                                             const struct hypertrace_bare_event *event) {
    /* The step is odd, so that the search reaches every slot. Ids with the same first slot seldom have the
       same second slot. */
    uint32_t at = event->id;
    uint32_t *known = &client->known[at % (2 * HYPERTRACE_BARE_EVENTS)];
    while (*known != event->id) {
        if (*known != 0) {
            at += event->id >> 16 | 1;
            known = &client->known[at % (2 * HYPERTRACE_BARE_EVENTS)];
            continue;
        }
        const uint64_t capacity = client->device->schema_words, from = client->schema_len;
        const uint64_t words = 1 + ((uint64_t)event->length + 7) / 8;
        const uint64_t seen =
            __atomic_load_n(&client->host[HYPERTRACE_ABI_H_SCHEMA_SEEN], __ATOMIC_ACQUIRE);
        if (client->described == HYPERTRACE_BARE_EVENTS || from - seen > capacity ||
            words > capacity - (from - seen)) {
            return;
        }
        client->schema[from & (capacity - 1)] = event->id | (uint64_t)event->length << 32;
        for (uint64_t i = 1; i < words; i++) {
            uint64_t word = 0;
            for (uint64_t j = 0; j < 8 && 8 * (i - 1) + j < event->length; j++) {
                word |= (uint64_t)(unsigned char)event->text[8 * (i - 1) + j] << (8 * j);
            }
            client->schema[(from + i) & (capacity - 1)] = word;
        }
        client->schema_len = from + words;
        hypertrace_bare_publish_(client->device, &client->guest[HYPERTRACE_ABI_G_SCHEMA_LEN],
                                 client->schema_len);
        client->described++;
        *known = event->id;
    }
}

/*
 * Begins an emit, and stores its timestamp to `now`. In the middle of another emit, counts the
 * event and returns false.
 */
static inline bool hypertrace_bare_enter_(struct hypertrace_bare *client, uint64_t *now) {
    if (client->is_busy) {
        hypertrace_bare_count_(&client->lost_busy);
        return false;
    }
    client->is_busy = true;
    hypertrace_bare_barrier_();
    /*
     * The clock is read after the flag is set. Therefore, if an interrupt emitted an event before the flag
     * was set, the event is not later than `now`.
     */
    *now = HYPERTRACE_BARE_NOW(client->device);
    if (*now < client->last) {
        /* The clock was set back. */
        *now = client->last;
    }
    return true;
}

static inline void hypertrace_bare_leave_(struct hypertrace_bare *client) {
    hypertrace_bare_barrier_();
    client->is_busy = false;
}

static inline void hypertrace_bare_store_losses_(struct hypertrace_bare *client) {
    client->guest[HYPERTRACE_ABI_G_LOST_FULL] = client->lost_full;
    client->guest[HYPERTRACE_ABI_G_LOST_BUSY] = client->lost_busy;
    client->guest[HYPERTRACE_ABI_G_LOST_UNATTACHED] = client->lost_unattached;
}

/* Publishes the totals of dropped events. A program calls this function before the program ends. */
static inline void hypertrace_bare_publish_losses(struct hypertrace_bare *client) {
    if (!client->is_busy) {
        client->is_busy = true;
        hypertrace_bare_barrier_();
        hypertrace_bare_store_losses_(client);
        hypertrace_bare_leave_(client);
    }
}

/* Fills the words up to the block's end with a pad record. A single word needs no pad. */
static inline void hypertrace_bare_pad_(const struct hypertrace_bare *client, uint64_t from,
                                        uint64_t to) {
    if (to - from >= 2) {
        const uint64_t words = to - from - 2;
        *hypertrace_bare_word_(client, from) = 0;
        *hypertrace_bare_word_(client, from + 1) =
            hypertrace_bare_meta_(HYPERTRACE_ABI_ID_PAD, words < 0xffff ? words : 0xffff, 0);
    }
}

static inline void hypertrace_bare_move_head_(struct hypertrace_bare *client, uint64_t words) {
    client->sequence++;
    client->head += words;
    hypertrace_bare_publish_(client->device, &client->guest[HYPERTRACE_ABI_G_HEAD], client->head);
}

/*
 * Moves the private head to the position of the next record, of `words` words, and opens a block if
 * necessary. Returns false if there is no room, or the record is too long for any block.
 */
static inline bool hypertrace_bare_find_room_(struct hypertrace_bare *client, uint64_t words,
                                              bool opens, bool is_point) {
    const struct hypertrace_bare_device *device = client->device;
    const uint64_t head = client->head, block = device->block_words;
    if (words > block - 2 || words > 2 + HYPERTRACE_ABI_MAX_WORDS) {
        return false;
    }
    uint64_t block_start = hypertrace_bare_block_start_(client, head);
    opens = opens || head == block_start || head + words > block_start + block;
    if (opens && head != block_start) {
        block_start += block;
    }
    uint64_t limit = block_start + block;
    if (!device->overwrites) {
        const uint64_t tail = __atomic_load_n(&client->host[HYPERTRACE_ABI_H_TAIL], __ATOMIC_ACQUIRE);
        const uint64_t end = (opens ? block_start + 2 : head) + words;
        const uint64_t room = device->ring_words - (is_point ? 0 : device->reserve_words);
        /* A tail beyond the end is the host's mistake, and the ring counts as full. */
        if (tail > end || end - tail > room) {
            return false;
        }
        if (opens && end - tail >= device->ring_words / 4) {
            hypertrace_bare_wake_(client);
        }
        if (limit > tail + device->ring_words - device->reserve_words) {
            limit = tail + device->ring_words - device->reserve_words;
        }
    }
    if (opens) {
        /* In overwrite mode, the host must see the published head before the host can see any word of the
           block that is overwritten below. */
        hypertrace_bare_order_(device);
        hypertrace_bare_pad_(client, head, block_start);
        *hypertrace_bare_word_(client, block_start) = client->sequence;
        *hypertrace_bare_word_(client, block_start + 1) = client->token;
        client->head = block_start + 2;
    }
    client->limit = limit;
    return true;
}

/*
 * Finds the place of a record, after writing the lease record if it is not in the ring yet. While
 * the lease record finds no room, this function returns false.
 */
static inline bool hypertrace_bare_make_room_(struct hypertrace_bare *client, uint64_t now,
                                              uint64_t words, bool is_point) {
    if (client->is_fresh) {
        const uint64_t lease_words = 2 + (client->lease[1] >> 32 & 0xffff);
        /* The lease record opens a block, because a block belongs to one lease. */
        if (!hypertrace_bare_find_room_(client, lease_words, true, is_point)) {
            return false;
        }
        client->lease[0] = now;
        for (uint64_t i = 0; i < lease_words; i++) {
            *hypertrace_bare_word_(client, client->head + i) = client->lease[i];
        }
        client->is_fresh = false;
        hypertrace_bare_move_head_(client, lease_words);
    }
    return hypertrace_bare_find_room_(client, words, false, is_point);
}

/*
 * Begins a record with `count` words of payload. Returns the address to which the caller stores these words,
 * in any order, before the caller calls hypertrace_bare_end with the same `count`. If the event is dropped,
 * counts the event and returns NULL. `flags` is 0, or HYPERTRACE_ABI_REFERENCE_POINT for a record that may
 * use the reserved part of the ring.
 */
static inline volatile uint64_t *hypertrace_bare_begin(struct hypertrace_bare *client,
                                                       const struct hypertrace_bare_event *event,
                                                       uint32_t count, uint64_t flags) {
    const uint64_t words = 2 + (uint64_t)count;
    uint64_t now;
    if (!hypertrace_bare_enter_(client, &now)) {
        return NULL;
    }
    if (now - client->last > client->device->pause) {
        /* `last` is set now, so that the next event does not follow the same pause if this event is
           dropped. */
        client->last = now;
        hypertrace_bare_wake_(client);
    }
    hypertrace_bare_describe_(client, event);
    if (client->head + words > client->limit) {
        hypertrace_bare_store_losses_(client);
        if (!hypertrace_bare_make_room_(client, now, words, flags != 0)) {
            hypertrace_bare_count_(&client->lost_full);
            hypertrace_bare_store_losses_(client);
            hypertrace_bare_leave_(client);
            return NULL;
        }
    }
    volatile uint64_t *record = hypertrace_bare_word_(client, client->head);
    record[0] = now;
    record[1] = hypertrace_bare_meta_(event->id, count, flags);
    client->last = now;
    return record + 2;
}

/* Ends a record, which the host sees from now on. */
static inline void hypertrace_bare_end(struct hypertrace_bare *client, uint32_t count) {
    hypertrace_bare_move_head_(client, 2 + (uint64_t)count);
    hypertrace_bare_leave_(client);
}

static inline bool hypertrace_bare_record_(struct hypertrace_bare *client,
                                           const struct hypertrace_bare_event *event,
                                           const uint64_t *args, uint32_t count, uint64_t flags) {
    volatile uint64_t *payload = hypertrace_bare_begin(client, event, count, flags);
    if (payload == NULL) {
        return false;
    }
    for (uint32_t i = 0; i < count; i++) {
        payload[i] = args[i];
    }
    hypertrace_bare_end(client, count);
    return true;
}

/* Returns whether the host has taken all records of the ring. Loads the tail from shared memory. */
static inline bool hypertrace_bare_is_taken(const struct hypertrace_bare *client) {
    return __atomic_load_n(&client->host[HYPERTRACE_ABI_H_TAIL], __ATOMIC_ACQUIRE) == client->head;
}

/*
 * Records an event in the ring: `args` has a word for each field, or the words of hypertrace_bare_put_string
 * for a str field. If the event is dropped, counts the event and returns false.
 */
static inline bool hypertrace_bare_emit(struct hypertrace_bare *client,
                                        const struct hypertrace_bare_event *event,
                                        const uint64_t *args, uint32_t count) {
    return hypertrace_bare_record_(client, event, args, count, 0);
}

/* Writes the slot, and stores the point's sequence number to EMIT. The caller has begun an emit. */
static inline void hypertrace_bare_fire_(struct hypertrace_bare *client,
                                         const struct hypertrace_bare_event *event, uint64_t now,
                                         const uint64_t *args, uint32_t count) {
    volatile uint64_t *slot = &client->guest[HYPERTRACE_ABI_G_SLOT];
    /* The number is never 0, because a segment's host serves no point with the number 0. */
    client->seq = client->seq + 1 != 0 ? client->seq + 1 : 1;
    /* This store comes first, because it clears the request for the previous point, and a segment's host may
       still poll this word for the previous point. */
    slot[3] = count;
    slot[0] = client->seq | (uint64_t)event->id << 32;
    hypertrace_bare_order_(client->device);
    slot[1] = event->name_hash | (uint64_t)client->cpu << 32;
    slot[2] = now;
    for (uint32_t i = 0; i < count; i++) {
        slot[HYPERTRACE_ABI_SLOT_HEADER_WORDS + i] = args[i];
    }
    HYPERTRACE_BARE_FENCE();
    hypertrace_bare_store_(hypertrace_bare_register_(client, HYPERTRACE_ABI_REGISTER_EMIT),
                           client->seq | (uint64_t)event->name_hash << 32);
}

/*
 * Begins an emit and makes a reference point. The store to EMIT is the last step here, and the caller ends
 * the emit. If another emit of this client is under way, or if the point has too many words, the function
 * counts the point as lost and returns false.
 */
static inline bool hypertrace_bare_begin_point_(struct hypertrace_bare *client,
                                                const struct hypertrace_bare_event *event,
                                                const uint64_t *args, uint32_t count) {
    uint64_t now;
    if (!hypertrace_bare_enter_(client, &now)) {
        return false;
    }
    client->last = now;
    hypertrace_bare_describe_(client, event);
    const bool fits = count <= HYPERTRACE_ABI_SLOT_WORDS;
    if (!fits) {
        hypertrace_bare_count_(&client->lost_full);
    }
    hypertrace_bare_store_losses_(client);
    if (fits) {
        hypertrace_bare_fire_(client, event, now, args, count);
    } else {
        hypertrace_bare_leave_(client);
    }
    return fits;
}

static inline uint64_t hypertrace_bare_reply_(const struct hypertrace_bare *client) {
    return __atomic_load_n(&client->host[HYPERTRACE_ABI_H_REPLY], __ATOMIC_ACQUIRE);
}

/*
 * Makes a reference point: an event that is ordered with the host's events, and that costs one exit. Returns
 * whether the point is recorded, and stores the host's answer to `reply`, unless `reply` is NULL. In a
 * segment, stores do not trap. The point is then a record that may use the reserved part of the ring, and the
 * host's time is 0.
 */
static inline bool hypertrace_bare_point(struct hypertrace_bare *client,
                                         const struct hypertrace_bare_event *event,
                                         const uint64_t *args, uint32_t count,
                                         struct hypertrace_bare_reply *reply) {
    struct hypertrace_bare_reply own;
    own.status = HYPERTRACE_ABI_STATUS_FAILED;
    own.host_time = 0;
    if (!hypertrace_bare_traps(client->device)) {
        if (hypertrace_bare_record_(client, event, args, count, HYPERTRACE_ABI_REFERENCE_POINT)) {
            own.status = HYPERTRACE_ABI_STATUS_RECORDED;
        }
    } else if (hypertrace_bare_begin_point_(client, event, args, count)) {
        const uint64_t answer = hypertrace_bare_reply_(client);
        if ((uint32_t)answer == client->seq) {
            own.status = (uint32_t)(answer >> 32);
            own.host_time = client->host[HYPERTRACE_ABI_H_REPLY_HOST_TIME];
        }
        hypertrace_bare_leave_(client);
    }
    if (reply != NULL) {
        *reply = own;
    }
    return own.status == HYPERTRACE_ABI_STATUS_RECORDED;
}

/*
 * Records an event of the interface of 2016 with one exit. The event has as many arguments as the device was
 * built for; missing arguments are 0. The function needs no lease, and does nothing if stores do not trap.
 */
static inline void hypertrace_bare_2016(const struct hypertrace_bare_device *device, uint32_t number,
                                        uint64_t arg1, const uint64_t *args, uint32_t count) {
    if (number >= device->clients || !hypertrace_bare_traps(device)) {
        return;
    }
    volatile uint64_t *slot = device->data + (uint64_t)number * device->args * HYPERTRACE_ABI_LEGACY_WORDS;
    for (uint32_t i = 0; i + 1 < device->args; i++) {
        slot[i] = i < count ? args[i] : 0;
    }
    HYPERTRACE_BARE_FENCE();
    hypertrace_bare_store_(device->control + 8 * (uint64_t)number, arg1);
}

#endif
