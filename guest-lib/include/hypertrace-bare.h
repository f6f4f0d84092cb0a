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
 * For x86-64 and AArch64, from C11 and C++17 on, freestanding or not, with gcc or clang. Loads and stores of registers
 * are single instructions that no compiler splits, merges or repeats. Nothing waits or allocates.
 *
 * A client is of one CPU or thread. An interrupt may emit in the middle of an emit: its event is dropped
 * and counted.
 *
 * Made by `cargo xtask header` from guest-lib/capi and the crate hypertrace-abi; docs/c.md describes its use.
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

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Constants of docs/abi.md. Indices are of words of 64 bits. */
#define HYPERTRACE_ABI_CONFIG_CLIENTS 0x0U
#define HYPERTRACE_ABI_CONFIG_ARGS 0x1U
#define HYPERTRACE_ABI_CONFIG_MAGIC 0x5U
#define HYPERTRACE_ABI_CONFIG_VERSION 0x6U
#define HYPERTRACE_ABI_CONFIG_FEATURES 0x7U
#define HYPERTRACE_ABI_CONFIG_FREQUENCY 0xbU
#define HYPERTRACE_ABI_CONFIG_SCHEMA_SIZE 0xeU
#define HYPERTRACE_ABI_CONFIG_RING_SIZE 0xfU
#define HYPERTRACE_ABI_CONFIG_BLOCK_SIZE 0x10U
#define HYPERTRACE_ABI_PAGE 0x1000U
#define HYPERTRACE_ABI_MIN_BAR 0x10000U
#define HYPERTRACE_ABI_MASK_BYTES 0x1000U
#define HYPERTRACE_ABI_RESERVED_PART 0x10U
#define HYPERTRACE_ABI_MAGIC 0x4543415254505948ULL
#define HYPERTRACE_ABI_VERSION 0x2U
#define HYPERTRACE_ABI_OVERWRITE 0x1U
#define HYPERTRACE_ABI_FEATURE_KICK 0x1U
#define HYPERTRACE_ABI_FEATURE_TRAPS 0x4U
#define HYPERTRACE_ABI_REGISTER_EMIT 0x0U
#define HYPERTRACE_ABI_REGISTER_LEASE 0x10U
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

/* A device, as its config page describes it. Offsets and sizes of memory are in words. */
struct hypertrace_bare_device {
    uint64_t *data;
    unsigned char *control;
    uint64_t *rings;
    /* Whether the rings are mapped other than write-back, so that stores need fences: true unless the caller
       clears it. */
    bool is_fenced;
    bool overwrites;
    uint64_t features;
    uint32_t clients, args;
    /* Of KICK and of the clients' registers, in bytes. */
    uint64_t kick, registers;
    uint64_t client_stride, schema_words, ring_words, block_words, reserve_words;
    /* Ticks after which the host must be woken. */
    uint64_t pause;
};

/* Most events that a client remembers to have described. Others are described again. */
enum { HYPERTRACE_BARE_EVENTS = 64 };

/* A client: a ring, a slot and registers for one CPU or thread. */
struct hypertrace_bare {
    const struct hypertrace_bare_device *device;
    volatile uint64_t *guest, *host, *schema, *ring;
    uint32_t number, cpu, seq;
    volatile bool is_busy;
    bool is_fresh;
    uint64_t token, head, limit, sequence, last, schema_len;
    /* Counts of dropped events: no room, or in the middle of another emit. */
    volatile uint64_t lost_full, lost_busy;
    uint64_t lease[9];
    uint32_t known[HYPERTRACE_BARE_EVENTS];
};

/* An event, by its text: name(field:type,field:type). Types are those of a word: u8 to u64, i8 to i64, f64,
   bool, x64. */
struct hypertrace_bare_event {
    const char *text;
    uint32_t length, id, name_hash;
};

/* Results of hypertrace_bare_point besides the host's status, which is HYPERTRACE_ABI_STATUS_RECORDED if it is recorded. */
enum { HYPERTRACE_BARE_NOT_MADE = -1 };

/* Names that end with an underscore are not for programs. */

/* Stores to a register, by one instruction of the form that emulators' plugins know. */
static inline void hypertrace_bare_store_(void *to, uint64_t value) {
#if defined(__x86_64__)
    /* In both dialects: -masm=intel takes the second. */
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

/* Loads a word that may trap, by one instruction. */
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

/* Returns the counter's name and frequency, as page G has them. */
static inline uint64_t hypertrace_bare_counter_(void) {
#if defined(__x86_64__)
    return HYPERTRACE_ABI_COUNTER_TSC;
#else
    uint64_t frequency;
    __asm__("mrs %0, cntfrq_el0" : "=r"(frequency));
    return HYPERTRACE_ABI_COUNTER_CNTVCT | frequency;
#endif
}

/* Orders stores before it and after it, also to memory that is not write-back. */
static inline void hypertrace_bare_fence_(void) {
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
}

static inline void hypertrace_bare_barrier_(void) {
    __asm__ volatile("" : : : "memory");
}

static inline bool hypertrace_bare_is_power_(uint64_t number) {
    return number != 0 && (number & (number - 1)) == 0;
}

static inline uint64_t hypertrace_bare_round_up_(uint64_t number, uint64_t unit) {
    return (number + unit - 1) / unit * unit;
}

/* Returns the size of a region of the window of which so many bytes are used. */
static inline uint64_t hypertrace_bare_region_(uint64_t used) {
    uint64_t size = HYPERTRACE_ABI_MIN_BAR;
    while (size < used) {
        size *= 2;
    }
    return size;
}

static inline uint64_t hypertrace_bare_config_(const void *config, unsigned int word) {
    return hypertrace_bare_load_((const unsigned char *)config + 8 * word);
}

/*
 * Looks for a device whose BARs 0, 1, 2 and 4 are mapped at these addresses. Returns false if it is none, or has
 * impossible sizes.
 */
static inline bool hypertrace_bare_at_bars(struct hypertrace_bare_device *device, const void *bar0,
                                           void *bar1, void *bar2, void *bar4) {
    if (hypertrace_bare_config_(bar0, HYPERTRACE_ABI_CONFIG_MAGIC) != HYPERTRACE_ABI_MAGIC) {
        return false;
    }
    const uint64_t version = hypertrace_bare_config_(bar0, HYPERTRACE_ABI_CONFIG_VERSION);
    const uint64_t clients = hypertrace_bare_config_(bar0, HYPERTRACE_ABI_CONFIG_CLIENTS);
    const uint64_t args = hypertrace_bare_config_(bar0, HYPERTRACE_ABI_CONFIG_ARGS);
    const uint64_t frequency = hypertrace_bare_config_(bar0, HYPERTRACE_ABI_CONFIG_FREQUENCY);
    const uint64_t schema = hypertrace_bare_config_(bar0, HYPERTRACE_ABI_CONFIG_SCHEMA_SIZE);
    const uint64_t ring = hypertrace_bare_config_(bar0, HYPERTRACE_ABI_CONFIG_RING_SIZE);
    const uint64_t block = hypertrace_bare_config_(bar0, HYPERTRACE_ABI_CONFIG_BLOCK_SIZE);
    /* Bounds of docs/abi.md. */
    if ((uint32_t)version != HYPERTRACE_ABI_VERSION || clients == 0 ||
        clients > 1024 || args == 0 || args > 16 ||
        !hypertrace_bare_is_power_(schema) || !hypertrace_bare_is_power_(ring) ||
        !hypertrace_bare_is_power_(block) || block < 256 ||
        ring > (uint64_t)1 << 32 || schema > 1 << 24 || block > ring / 16) {
        return false;
    }
    device->data = (uint64_t *)bar1;
    device->control = (unsigned char *)bar2;
    device->rings = (uint64_t *)bar4;
    device->is_fenced = true;
    device->overwrites = version >> 32 == HYPERTRACE_ABI_OVERWRITE;
    device->features = hypertrace_bare_config_(bar0, HYPERTRACE_ABI_CONFIG_FEATURES);
    device->clients = (uint32_t)clients;
    device->args = (uint32_t)args;
    /* After the registers of 2016. Each has a page. */
    device->kick = hypertrace_bare_round_up_(8 * clients, HYPERTRACE_ABI_PAGE);
    device->registers = device->kick + HYPERTRACE_ABI_PAGE;
    device->client_stride = (2 * HYPERTRACE_ABI_PAGE + schema + ring) / 8;
    device->schema_words = schema / 8;
    device->ring_words = ring / 8;
    device->block_words = block / 8;
    device->reserve_words = ring / 8 / HYPERTRACE_ABI_RESERVED_PART;
    /* Without a frequency, less than the shortest time that it can be. */
    device->pause = frequency != 0 ? frequency / 1000 * HYPERTRACE_ABI_PAUSE_MS : 100000;
    return true;
}

/* As hypertrace_bare_at_bars, for a device in an MMIO window, or a segment that is mapped at this address. */
static inline bool hypertrace_bare_at_window(struct hypertrace_bare_device *device, void *window) {
    unsigned char *base = (unsigned char *)window;
    /* The config page and the arguments of events of 2016 are in front of the other regions. */
    unsigned char *data = base + HYPERTRACE_ABI_MIN_BAR;
    if (!hypertrace_bare_at_bars(device, base, data, data, data)) {
        return false;
    }
    const uint64_t slots = 8 * (uint64_t)HYPERTRACE_ABI_LEGACY_WORDS * device->clients * device->args;
    const uint64_t registers = device->registers + device->clients * (uint64_t)HYPERTRACE_ABI_PAGE;
    device->control = data + hypertrace_bare_region_(slots);
    device->rings = (uint64_t *)(device->control + hypertrace_bare_region_(registers));
    return true;
}

/* Returns whether the host handles stores to registers at once. */
static inline bool hypertrace_bare_traps(const struct hypertrace_bare_device *device) {
    return (device->features & HYPERTRACE_ABI_FEATURE_TRAPS) != 0;
}

/* Stores to one of a client's registers. */
static inline void hypertrace_bare_register_(const struct hypertrace_bare *client, uint64_t offset,
                                             uint64_t value) {
    const struct hypertrace_bare_device *device = client->device;
    hypertrace_bare_store_(device->control + device->registers +
                               client->number * (uint64_t)HYPERTRACE_ABI_PAGE + offset,
                           value);
}

/* Asks the host to take the records of all rings soon. */
static inline void hypertrace_bare_kick(const struct hypertrace_bare *client) {
    if (hypertrace_bare_traps(client->device)) {
        hypertrace_bare_store_(client->device->control + client->device->kick, 0);
    }
}

/* Wakes a host that may have stopped to look at rings. */
static inline void hypertrace_bare_wake_(const struct hypertrace_bare *client) {
    if ((client->device->features & HYPERTRACE_ABI_FEATURE_KICK) != 0) {
        hypertrace_bare_kick(client);
    }
}

static inline volatile uint64_t *hypertrace_bare_word_(const struct hypertrace_bare *client,
                                                       uint64_t position) {
    return &client->ring[position & (client->device->ring_words - 1)];
}

/* Returns the second word of a record's header. */
static inline uint64_t hypertrace_bare_meta_(uint32_t id, uint64_t words, uint64_t flags) {
    return id | words << 32 | flags << 48;
}

/* Returns the sequence number of the record after the last one. */
static inline uint64_t hypertrace_bare_walk_(const struct hypertrace_bare *client, uint64_t head) {
    if (head == 0) {
        return 0;
    }
    const uint64_t start = (head - 1) & ~(client->device->block_words - 1);
    uint64_t sequence = *hypertrace_bare_word_(client, start);
    /* Each turn adds at least two words, up to a block's. */
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

/*
 * Takes client `number` of the device, which must have no other lessee; kernels and firmware have the client of the
 * CPU's number. `token` is a nonzero number that no other lessee has. `cpu` is shown with reference points. The
 * name is cut to 20 bytes. Returns false if there is no such client.
 */
static inline bool hypertrace_bare_lease(struct hypertrace_bare *client,
                                         const struct hypertrace_bare_device *device, uint32_t number,
                                         uint32_t cpu, uint64_t token, const char *name) {
    if (number >= device->clients || token == 0) {
        return false;
    }
    volatile uint64_t *area = device->rings + HYPERTRACE_ABI_MASK_BYTES / 8 + number * device->client_stride;
    client->device = device;
    client->guest = area;
    client->host = area + HYPERTRACE_ABI_PAGE / 8;
    client->schema = area + 2 * HYPERTRACE_ABI_PAGE / 8;
    client->ring = client->schema + device->schema_words;
    client->number = number;
    client->cpu = cpu;
    client->token = token;
    client->is_busy = false;
    client->is_fresh = true;
    if (hypertrace_bare_traps(device)) {
        hypertrace_bare_register_(client, HYPERTRACE_ABI_REGISTER_LEASE, token);
    }
    /* A late answer to the last lessee is none to this one. */
    client->seq = (uint32_t)client->host[HYPERTRACE_ABI_H_REPLY];
    const uint64_t head = __atomic_load_n(&client->guest[HYPERTRACE_ABI_G_HEAD], __ATOMIC_ACQUIRE);
    const uint64_t tail = __atomic_load_n(&client->host[HYPERTRACE_ABI_H_TAIL], __ATOMIC_ACQUIRE);
    const bool is_plausible = tail <= head && head < (uint64_t)1 << 60 &&
                              (device->overwrites || head - tail <= device->ring_words);
    client->guest[HYPERTRACE_ABI_G_COUNTER] = hypertrace_bare_counter_();
    client->head = is_plausible ? head : 0;
    if (!is_plausible) {
        __atomic_store_n(&client->guest[HYPERTRACE_ABI_G_HEAD], 0, __ATOMIC_RELEASE);
    }
    client->sequence = hypertrace_bare_walk_(client, client->head);
    client->limit = 0;
    client->lost_full = client->guest[HYPERTRACE_ABI_G_LOST_FULL];
    client->lost_busy = client->guest[HYPERTRACE_ABI_G_LOST_BUSY];
    client->schema_len = client->guest[HYPERTRACE_ABI_G_SCHEMA_LEN];
    for (unsigned int i = 0; i < HYPERTRACE_BARE_EVENTS; i++) {
        client->known[i] = 0;
    }

    /* The record of the lease. */
    uint64_t length = 0;
    client->lease[6] = client->lease[7] = client->lease[8] = 0;
    for (; length < 20 && name[length] != 0; length++) {
        const uint64_t at = 4 + length;
        client->lease[6 + at / 8] |= (uint64_t)(unsigned char)name[length] << (at % 8 * 8);
    }
    client->lease[6] |= length;
    client->lease[1] = hypertrace_bare_meta_(HYPERTRACE_ABI_ID_LEASE, 4 + (4 + length + 7) / 8, 0);
    client->lease[2] = token;
    client->lease[3] = 0;
    client->lease[4] = cpu;
    client->lease[5] = HYPERTRACE_ABI_CLOCK_COUNTER;
    client->last = hypertrace_bare_ticks_();
    return true;
}

/* Describes an event. The text must stay where it is. An invalid one makes the host show the event as untyped. */
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

/* Writes an event's text to the log of schemas, before its first record. */
static inline void hypertrace_bare_describe_(struct hypertrace_bare *client,
                                             const struct hypertrace_bare_event *event) {
    uint32_t *known = NULL;
    for (uint32_t i = 0; i < HYPERTRACE_BARE_EVENTS; i++) {
        uint32_t *at = &client->known[(event->id + i) % HYPERTRACE_BARE_EVENTS];
        if (*at == event->id) {
            return;
        }
        if (*at == 0) {
            known = at;
            break;
        }
    }
    const uint64_t capacity = client->device->schema_words, from = client->schema_len;
    const uint64_t words = 1 + (event->length + 7) / 8;
    const uint64_t seen =
        __atomic_load_n(&client->host[HYPERTRACE_ABI_H_SCHEMA_SEEN], __ATOMIC_ACQUIRE);
    if (from - seen > capacity || words > capacity - (from - seen)) {
        return;
    }
    client->schema[from & (capacity - 1)] = event->id | (uint64_t)event->length << 32;
    for (uint64_t i = 1; i < words; i++) {
        uint64_t word = 0;
        for (uint32_t j = 0; j < 8 && 8 * (i - 1) + j < event->length; j++) {
            word |= (uint64_t)(unsigned char)event->text[8 * (i - 1) + j] << (8 * j);
        }
        client->schema[(from + i) & (capacity - 1)] = word;
    }
    if (client->device->is_fenced) {
        hypertrace_bare_fence_();
    }
    client->schema_len = from + words;
    __atomic_store_n(&client->guest[HYPERTRACE_ABI_G_SCHEMA_LEN], client->schema_len,
                     __ATOMIC_RELEASE);
    if (known != NULL) {
        *known = event->id;
    }
}

/* Begins an emit. Returns its timestamp, 0 if it is in the middle of another. */
static inline uint64_t hypertrace_bare_enter_(struct hypertrace_bare *client) {
    if (client->is_busy) {
        client->lost_busy = client->lost_busy + 1;
        return 0;
    }
    client->is_busy = true;
    hypertrace_bare_barrier_();
    /* After the flag: what an interrupt emits before it is earlier. */
    return hypertrace_bare_ticks_();
}

static inline void hypertrace_bare_leave_(struct hypertrace_bare *client, uint64_t now) {
    client->last = now;
    hypertrace_bare_barrier_();
    client->is_busy = false;
}

/* Fills the words up to the block's end. */
static inline void hypertrace_bare_pad_(const struct hypertrace_bare *client, uint64_t from,
                                        uint64_t to) {
    if (to - from >= 2) {
        const uint64_t words = to - from - 2;
        *hypertrace_bare_word_(client, from) = 0;
        *hypertrace_bare_word_(client, from + 1) =
            hypertrace_bare_meta_(HYPERTRACE_ABI_ID_PAD, words < 0xffff ? words : 0xffff, 0);
    }
}

/* Publishes the counts of dropped events. Call it at the end, if there is one. */
static inline void hypertrace_bare_publish_losses(struct hypertrace_bare *client) {
    client->guest[HYPERTRACE_ABI_G_LOST_FULL] = client->lost_full;
    client->guest[HYPERTRACE_ABI_G_LOST_BUSY] = client->lost_busy;
}

/* Finds the position for a record, and writes all that precedes it. Returns false if there is no room. */
static inline bool hypertrace_bare_make_room_(struct hypertrace_bare *client, uint64_t now,
                                              uint64_t words, bool is_point) {
    hypertrace_bare_publish_losses(client);
    const struct hypertrace_bare_device *device = client->device;
    const uint64_t head = client->head, block = device->block_words;
    const uint64_t block_start = head & ~(block - 1);
    const uint64_t lease_words = client->is_fresh ? 2 + (client->lease[1] >> 32 & 0xffff) : 0;
    const bool opens = client->is_fresh || head == block_start || head + words > block_start + block;
    const uint64_t start = opens && head != block_start ? block_start + block : head;
    const uint64_t at = opens ? start + 2 + lease_words : start;
    uint64_t limit = UINT64_MAX;
    if (!device->overwrites) {
        const uint64_t tail =
            __atomic_load_n(&client->host[HYPERTRACE_ABI_H_TAIL], __ATOMIC_ACQUIRE);
        const uint64_t used = at + words - tail;
        if (at + words < tail ||
            used > device->ring_words - (is_point ? 0 : device->reserve_words)) {
            return false;
        }
        if (opens && used >= device->ring_words / 4) {
            hypertrace_bare_wake_(client);
        }
        limit = tail + device->ring_words - device->reserve_words;
    }
    if (opens) {
        /* Where the ring overwrites, the head is published before words of a block are overwritten. */
        __atomic_thread_fence(__ATOMIC_RELEASE);
        hypertrace_bare_pad_(client, head, start);
        *hypertrace_bare_word_(client, start) = client->sequence;
        *hypertrace_bare_word_(client, start + 1) = client->token;
        if (client->is_fresh) {
            client->lease[0] = now;
            for (uint64_t i = 0; i < lease_words; i++) {
                *hypertrace_bare_word_(client, start + 2 + i) = client->lease[i];
            }
            client->sequence++;
            client->is_fresh = false;
        }
        client->head = at;
    }
    const uint64_t end = (client->head & ~(block - 1)) + block;
    client->limit = end < limit ? end : limit;
    return true;
}

/* Writes a record to the ring. */
static inline bool hypertrace_bare_record_(struct hypertrace_bare *client,
                                           const struct hypertrace_bare_event *event,
                                           const uint64_t *args, uint32_t count, uint64_t flags) {
    if (count > HYPERTRACE_ABI_MAX_FIELDS) {
        return false;
    }
    const uint64_t now = hypertrace_bare_enter_(client), words = 2 + count;
    if (now == 0) {
        return false;
    }
    if (now - client->last > client->device->pause) {
        /* If this event is dropped, the next one does not follow the same pause. */
        client->last = now;
        hypertrace_bare_wake_(client);
    }
    hypertrace_bare_describe_(client, event);
    if (client->head + words > client->limit &&
        !hypertrace_bare_make_room_(client, now, words, flags != 0)) {
        client->lost_full = client->lost_full + 1;
        hypertrace_bare_publish_losses(client);
        hypertrace_bare_leave_(client, client->last);
        return false;
    }
    volatile uint64_t *record = hypertrace_bare_word_(client, client->head);
    record[0] = now;
    record[1] = hypertrace_bare_meta_(event->id, count, flags);
    for (uint32_t i = 0; i < count; i++) {
        record[2 + i] = args[i];
    }
    if (client->device->is_fenced) {
        hypertrace_bare_fence_();
    }
    client->head += words;
    client->sequence++;
    __atomic_store_n(&client->guest[HYPERTRACE_ABI_G_HEAD], client->head, __ATOMIC_RELEASE);
    if (client->device->is_fenced) {
        hypertrace_bare_fence_();
    }
    hypertrace_bare_leave_(client, now);
    return true;
}

/* Returns whether the host has taken all records of the ring. A load from memory that is shared. */
static inline bool hypertrace_bare_is_taken(const struct hypertrace_bare *client) {
    return __atomic_load_n(&client->host[HYPERTRACE_ABI_H_TAIL], __ATOMIC_ACQUIRE) == client->head;
}

/* Records an event in the ring: `args` has a word for each field. Returns false if it is dropped, and counted. */
static inline bool hypertrace_bare_emit(struct hypertrace_bare *client,
                                        const struct hypertrace_bare_event *event,
                                        const uint64_t *args, uint32_t count) {
    return hypertrace_bare_record_(client, event, args, count, 0);
}

/*
 * Makes a reference point, in order with what the host does: one exit. Returns the host's status, and stores its
 * time unless `host_time` is NULL. In a segment, where nothing traps, it is a record that may use the part of
 * the ring that is kept for such, and the time is 0.
 */
static inline int hypertrace_bare_point(struct hypertrace_bare *client,
                                        const struct hypertrace_bare_event *event,
                                        const uint64_t *args, uint32_t count, uint64_t *host_time) {
    if (host_time != NULL) {
        *host_time = 0;
    }
    if (!hypertrace_bare_traps(client->device)) {
        const bool is_recorded = hypertrace_bare_record_(client, event, args, count,
                                                         HYPERTRACE_ABI_REFERENCE_POINT);
        return is_recorded ? (int)HYPERTRACE_ABI_STATUS_RECORDED : (int)HYPERTRACE_BARE_NOT_MADE;
    }
    if (count > HYPERTRACE_ABI_MAX_FIELDS) {
        return HYPERTRACE_BARE_NOT_MADE;
    }
    const uint64_t now = hypertrace_bare_enter_(client);
    if (now == 0) {
        return HYPERTRACE_BARE_NOT_MADE;
    }
    hypertrace_bare_describe_(client, event);
    hypertrace_bare_publish_losses(client);
    volatile uint64_t *slot = &client->guest[HYPERTRACE_ABI_G_SLOT];
    /* 0 asks a segment's host for nothing. */
    client->seq = client->seq + 1 != 0 ? client->seq + 1 : 1;
    slot[3] = count;
    slot[0] = client->seq | (uint64_t)event->id << 32;
    __atomic_thread_fence(__ATOMIC_RELEASE);
    slot[1] = event->name_hash | (uint64_t)client->cpu << 32;
    slot[2] = now;
    for (uint32_t i = 0; i < count; i++) {
        slot[HYPERTRACE_ABI_SLOT_HEADER_WORDS + i] = args[i];
    }
    hypertrace_bare_fence_();
    hypertrace_bare_register_(client, HYPERTRACE_ABI_REGISTER_EMIT,
                             client->seq | (uint64_t)event->name_hash << 32);
    const uint64_t reply = __atomic_load_n(&client->host[HYPERTRACE_ABI_H_REPLY], __ATOMIC_ACQUIRE);
    const bool is_answered = (uint32_t)reply == client->seq;
    if (is_answered && host_time != NULL) {
        *host_time = client->host[HYPERTRACE_ABI_H_REPLY_HOST_TIME];
    }
    hypertrace_bare_leave_(client, now);
    return is_answered ? (int)(reply >> 32) : (int)HYPERTRACE_BARE_NOT_MADE;
}

/*
 * Records an event of the interface of 2016, with as many arguments as the device has for one: those that are not
 * given are 0. One exit. Needs no lease. Does nothing where nothing traps.
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
    hypertrace_bare_fence_();
    hypertrace_bare_store_(device->control + 8 * (uint64_t)number, arg1);
}

#endif
