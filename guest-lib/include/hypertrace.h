/*
 * hypertrace.h: trace events from C and C++, on the host's timeline.
 *
 *     HYPERTRACE_EVENT("disk_read", lba, (len, sectors * 512));
 *
 * Made by `cargo xtask header` from guest-lib/capi; docs/c.md describes its use.
 *
 * SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
 */

#ifndef HYPERTRACE_H
#define HYPERTRACE_H

#include <limits.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#if defined(__cplusplus)
#include <cstring>
#include <type_traits>
#endif

/**
 * `uint8_t`. The constants are the types of fields, as the macros pass them.
 */
#define HYPERTRACE_TYPE_U8 0

/**
 * `uint16_t`
 */
#define HYPERTRACE_TYPE_U16 1

/**
 * `uint32_t`
 */
#define HYPERTRACE_TYPE_U32 2

/**
 * `uint64_t`
 */
#define HYPERTRACE_TYPE_U64 3

/**
 * `int8_t`
 */
#define HYPERTRACE_TYPE_I8 4

/**
 * `int16_t`
 */
#define HYPERTRACE_TYPE_I16 5

/**
 * `int32_t`
 */
#define HYPERTRACE_TYPE_I32 6

/**
 * `int64_t`
 */
#define HYPERTRACE_TYPE_I64 7

/**
 * `float`, `double`; the value's word is the bits of a `double`
 */
#define HYPERTRACE_TYPE_F64 8

/**
 * `bool`
 */
#define HYPERTRACE_TYPE_BOOL 9

/**
 * A pointer, or a number that is shown in hexadecimal
 */
#define HYPERTRACE_TYPE_X64 10

/**
 * `const char *`; the value's word is the address
 */
#define HYPERTRACE_TYPE_STR 11

/**
 * Outcome of an event.
 */
enum hypertrace_outcome {
    /**
     * The event is recorded.
     */
    HYPERTRACE_OUTCOME_RECORDED = 0,
    /**
     * The host does not want the event.
     */
    HYPERTRACE_OUTCOME_FILTERED = 1,
    /**
     * The host had no room, or did not answer: counted.
     */
    HYPERTRACE_OUTCOME_FAILED = 2,
    /**
     * The host rejects the event as malformed: counted.
     */
    HYPERTRACE_OUTCOME_INVALID = 3,
    /**
     * The event exceeds the client's rate limit: counted.
     */
    HYPERTRACE_OUTCOME_LIMITED = 4,
    /**
     * The ring has no room: counted.
     */
    HYPERTRACE_OUTCOME_FULL = 5,
    /**
     * The thread is in the middle of another event, so this is a signal
     * handler's: counted.
     */
    HYPERTRACE_OUTCOME_BUSY = 6,
    /**
     * The thread has no client, or there is no device: see `hypertrace_open`.
     */
    HYPERTRACE_OUTCOME_NO_CLIENT = 7,
    /**
     * The event's names and types make no valid schema: counted.
     */
    HYPERTRACE_OUTCOME_REFUSED = 8,
};

/**
 * A call site. The macros define a static of this type for each one. The
 * fields marked "to be filled in" are the program's; all others are zero at
 * first and belong to the library.
 */
struct hypertrace_site {
    /**
     * To be filled in: the event's name.
     */
    const char *name;
    /**
     * To be filled in: the fields' names, with a comma after each.
     */
    const char *fields;
    /**
     * To be filled in: a `HYPERTRACE_TYPE_` for each field.
     */
    const uint8_t *types;
    /**
     * To be filled in: the number of fields.
     */
    uint32_t count;
    /**
     * The state: 0 while the site is new.
     */
    uint32_t state;
    uint32_t id;
    uint32_t name_hash;
};

/**
 * The host's answer to a reference point.
 */
struct hypertrace_reply {
    /**
     * The point's outcome. The other fields are 0 unless the host has answered.
     */
    enum hypertrace_outcome outcome;
    /**
     * This thread's clock before the point.
     */
    uint64_t before;
    /**
     * The host's raw counter, in its own ticks: between `before` and `after`.
     */
    uint64_t host_time;
    /**
     * This thread's clock after the point.
     */
    uint64_t after;
    /**
     * The host's clock epoch, which changes when time jumps (restore,
     * migration).
     */
    uint64_t epoch;
};

/**
 * Options of `hypertrace_open`: the place of the device. With all zeros, or
 * with no options, the library finds the device by itself.
 */
struct hypertrace_options {
    /**
     * `sizeof(struct hypertrace_options)`. Later versions may have more fields.
     */
    size_t size;
    /**
     * The file of a segment. NULL: the file that HYPERTRACE_SEGMENT in the
     * environment names, if it is set.
     */
    const char *segment;
    /**
     * The PCI function, as in "0000:00:04.0". NULL: the first that is a
     * hypertrace device.
     */
    const char *function;
    /**
     * The physical address of the MMIO window. 0: the address on the kernel
     * command line, if there is one.
     */
    uint64_t window;
};

/**
 * Counts of this process's clients and events that the host does not show.
 * They are running totals; a forked child begins at zero.
 */
struct hypertrace_counts {
    /**
     * Events of threads that had no client: none was free, the thread was
     * ending, or another took more than a second to open the device.
     */
    uint64_t unattached;
    /**
     * Clients that a thread abandoned because a signal handler had jumped out
     * of an event.
     */
    uint64_t abandoned;
    /**
     * Clients that a thread left because another had taken them.
     */
    uint64_t taken;
    /**
     * Reference points that a segment's host did not answer within a second,
     * or for which no thread waited because the host was already dead.
     */
    uint64_t unanswered;
    /**
     * Events whose names and types make no valid schema. A fork does not reset this count.
     */
    uint64_t refused;
    /**
     * Events that no host took, as it had ended.
     */
    uint64_t host_ended;
};

#ifdef __cplusplus
extern "C" {
#endif /* __cplusplus */

/**
 * Records an event. HYPERTRACE_EVENT calls it when the event is on.
 *
 * # Safety
 * `site` is a call site as the macros make it, and `values` has a word for
 * each of its fields.
 */
enum hypertrace_outcome hypertrace_event(struct hypertrace_site *site, const uint64_t *values);

/**
 * Records an event that must not be dropped, for HYPERTRACE_COMMIT. Stores its
 * outcome to `outcome`, unless that is NULL.
 *
 * # Safety
 * As for `hypertrace_event`; `outcome` is NULL or can be stored to.
 */
void hypertrace_commit(struct hypertrace_site *site,
                       const uint64_t *values,
                       enum hypertrace_outcome *outcome);

/**
 * Makes a reference point, for HYPERTRACE_REFERENCE_POINT. Stores the host's
 * answer to `reply`, unless that is NULL.
 *
 * # Safety
 * As for `hypertrace_event`; `reply` is NULL or can be stored to.
 */
void hypertrace_reference_point(struct hypertrace_site *site,
                                const uint64_t *values,
                                struct hypertrace_reply *reply);

/**
 * Opens the device, or the segment of `hypertrace record`, for this process. The
 * first event does the same, but reports no error.
 *
 * `options` may be NULL. If there is nothing to open, or the system does not
 * allow it, the function returns false and stores the reason to `error`, unless
 * that is NULL: what failed, where, and what to do. The text is cut off to
 * `size` bytes, including the zero at its end.
 *
 * A channel that is already open stays open.
 *
 * # Safety
 * Each pointer is NULL or valid for the use described above.
 */
bool hypertrace_open(const struct hypertrace_options *options, char *error, size_t size);

/**
 * Stores the span in whose course the host records this process, by W3C's Trace Context, so that the
 * program's own tracing can continue that trace: the value of a `traceparent` header, 55
 * characters and a zero. Looks for the device if no event has done so.
 *
 * Returns false, and stores nothing, if there is no device, if its host has no such span, or if `size`
 * is less than 56.
 *
 * # Safety
 * `text` points to `size` bytes.
 */
bool hypertrace_trace_parent(char *text,
                             size_t size);

/**
 * Applies the host's enable mask and reports to the host how many events this
 * thread has dropped, immediately. A thread of the library does the same every
 * 10 ms.
 */
void hypertrace_poll(void);

/**
 * Waits until the ring has room for the next `events` events of this thread, if
 * the fields of each take at most `words` words. If there is no room, it wakes
 * the host and waits at most a second. For programs that prefer a wait to a lost
 * event. Returns false if there is still no room, if there can never be, or if
 * no host drains this thread's ring.
 *
 * A field takes one word; a string takes its bytes and 4 more, rounded up to words.
 */
bool hypertrace_wait_for_room(size_t events, size_t words);

/**
 * Records an event of the numbers-only interface of 2016: `arg1`, and at most
 * as many further arguments as the device was built for. It costs one exit.
 * Over a segment it is a commit.
 *
 * # Safety
 * `args` points to `count` words.
 */
void hypertrace_legacy(uint64_t arg1, const uint64_t *args, size_t count);

/**
 * Stores the first `size` bytes of the counts. Pass
 * `sizeof(struct hypertrace_counts)` as `size`. Counts that this version of the library does
 * not have are zero.
 *
 * # Safety
 * `counts` points to `size` bytes.
 */
void hypertrace_counts(struct hypertrace_counts *counts, size_t size);

/**
 * Records the event `function_entry`, for HYPERTRACE_FUNCTIONS.
 */
void hypertrace_function_entry(const void *function);

/**
 * Records the event `function_exit`, for HYPERTRACE_FUNCTIONS.
 */
void hypertrace_function_exit(const void *function);

/**
 * Records the event `function_module` for each file of code that is loaded into the process: its path, the
 * difference of its addresses in memory and in the file, and where it begins and ends in memory. Opens the
 * channel as the first event does.
 *
 * HYPERTRACE_FUNCTIONS calls it before `main`. A program that later loads libraries with instrumented
 * functions (`dlopen`) calls it again; without new libraries it does nothing.
 */
void hypertrace_function_modules(void);

#ifdef __cplusplus
}  /* extern "C" */
#endif  /* __cplusplus */

/*
 * The macros. They are statements, for C11 and C++17.
 *
 * A name is a string literal: [A-Za-z_][A-Za-z0-9_]*, at most 64 bytes. After it follow 0 to 16
 * fields. A field is a variable, whose name becomes the field's name, or a pair (name, value) in
 * parentheses. Values are integers, bool, float and double, char * (a string: its bytes up to the
 * zero, at most 1,024), and other pointers to objects, which are shown in hexadecimal. A variable
 * named like a macro or a keyword needs a pair with another name.
 *
 * The types of the fields are those of the values. The types of a call site never change.
 */

/*
 * HYPERTRACE_EVENT(name, field..): records an event in this thread's ring. Except for the first
 * time, values are not computed while the event is switched off or where there is no device. Events
 * that cannot be recorded are counted, and the host shows the count.
 */
#define HYPERTRACE_EVENT(...)                                                                      \
    do {                                                                                           \
        HYPERTRACE_SITE_(__VA_ARGS__)                                                              \
        if (HYPERTRACE_IS_ON_(hypertrace_site_, HYPERTRACE_FIRST_(__VA_ARGS__, ~))) {              \
            HYPERTRACE_NOTE_(__VA_ARGS__)                                                          \
            HYPERTRACE_VALUES_(__VA_ARGS__)                                                        \
            (void)hypertrace_event(&hypertrace_site_, hypertrace_values_);                         \
        }                                                                                          \
    } while (0)

/*
 * HYPERTRACE_COMMIT(outcome, name, field..): an event that must not be dropped. It may use the part
 * of the ring that is reserved for such events. If that is full too, it waits at most a second for
 * the host to drain the ring. `outcome` is an enum hypertrace_outcome * or NULL. When it is
 * HYPERTRACE_OUTCOME_RECORDED, the event is in memory that the host has too, after all that this
 * thread has recorded before, and survives this process. The host may not have seen it yet.
 */
#define HYPERTRACE_COMMIT(outcome, ...)                                                            \
    do {                                                                                           \
        HYPERTRACE_SITE_(__VA_ARGS__)                                                              \
        HYPERTRACE_NOTE_(__VA_ARGS__)                                                              \
        HYPERTRACE_VALUES_(__VA_ARGS__)                                                            \
        hypertrace_commit(&hypertrace_site_, hypertrace_values_, (outcome));                       \
    } while (0)

/*
 * HYPERTRACE_REFERENCE_POINT(reply, name, field..): an event that is ordered with the host's
 * events. The host has handled it when the statement ends. The cost is one exit from a VM; outside
 * of VMs it is a wait for the host's thread, at most a second. `reply` is a struct
 * hypertrace_reply * or NULL.
 */
#define HYPERTRACE_REFERENCE_POINT(reply, ...)                                                     \
    do {                                                                                           \
        HYPERTRACE_SITE_(__VA_ARGS__)                                                              \
        HYPERTRACE_NOTE_(__VA_ARGS__)                                                              \
        HYPERTRACE_VALUES_(__VA_ARGS__)                                                            \
        hypertrace_reference_point(&hypertrace_site_, hypertrace_values_, (reply));                \
    } while (0)

/*
 * HYPERTRACE_REGION_BEGIN(name, id, field..), HYPERTRACE_REGION_END(name, id): a region of interest,
 * as the events NAME_begin(id, field..) and NAME_end(id). The id is a number that distinguishes one
 * pass through the region from another. There are 0 to 15 fields.
 */
#define HYPERTRACE_REGION_BEGIN(name, ...)                                                         \
    HYPERTRACE_CAT_(HYPERTRACE_BEGIN_, HYPERTRACE_HAS_FIELDS_(__VA_ARGS__))(name, __VA_ARGS__)
#define HYPERTRACE_BEGIN_0_(name, id_)                                                             \
    HYPERTRACE_EVENT(name "_begin", (id, HYPERTRACE_U64_(id_)))
#define HYPERTRACE_BEGIN_1_(name, id_, ...)                                                        \
    HYPERTRACE_EVENT(name "_begin", (id, HYPERTRACE_U64_(id_)), __VA_ARGS__)
#define HYPERTRACE_REGION_END(name, id_) HYPERTRACE_EVENT(name "_end", (id, HYPERTRACE_U64_(id_)))

/*
 * HYPERTRACE_FUNCTIONS: each call of a function that the compiler has instrumented is the events
 * function_entry(address) and function_exit(address), with the function's address. Compile the
 * functions' sources with -finstrument-functions, and define this macro in at least one source of the
 * program before it includes this header: cc -finstrument-functions -DHYPERTRACE_FUNCTIONS.
 *
 * The channel is opened before `main`, as by a first event. Functions that are called earlier are
 * not recorded. `hypertrace_function_modules` says what a function's address belongs to. Functions
 * with __attribute__((no_instrument_function)) are left out.
 */

/* Names that end with an underscore are not for programs. */

/* The header's own functions are not instrumented. */
#if defined(__GNUC__)
#define HYPERTRACE_UNSEEN_ __attribute__((no_instrument_function))
#else
#define HYPERTRACE_UNSEEN_
#endif

#if defined(HYPERTRACE_FUNCTIONS)
#if defined(__cplusplus)
extern "C" {
#endif

/* The functions that instrumented code calls. Weak, so that several sources may define them. */
__attribute__((weak)) HYPERTRACE_UNSEEN_ void __cyg_profile_func_enter(void *function,
                                                                       void *call_site);
__attribute__((weak)) HYPERTRACE_UNSEEN_ void __cyg_profile_func_exit(void *function,
                                                                      void *call_site);

void __cyg_profile_func_enter(void *function, void *call_site) {
    (void)call_site;
    hypertrace_function_entry(function);
}

void __cyg_profile_func_exit(void *function, void *call_site) {
    (void)call_site;
    hypertrace_function_exit(function);
}

/* Before the constructors of C++: theirs is the lowest priority. */
__attribute__((constructor(101))) HYPERTRACE_UNSEEN_ static void hypertrace_functions_(void) {
    hypertrace_function_modules();
}

#if defined(__cplusplus)
}
#endif
#endif

/* A call site's names and types. The struct makes the compiler refuse invalid names. */
#define HYPERTRACE_SITE_(...)                                                                      \
    struct hypertrace_names_ {                                                                     \
        char hypertrace_;                                                                          \
        HYPERTRACE_EACH_(HYPERTRACE_MEMBER_, __VA_ARGS__)                                          \
    };                                                                                             \
    static const unsigned char hypertrace_types_[] = {                                             \
        HYPERTRACE_EACH_(HYPERTRACE_TYPE_OF_, __VA_ARGS__) 0};                                     \
    static struct hypertrace_site hypertrace_site_ = {                                             \
        "" HYPERTRACE_FIRST_(__VA_ARGS__, ~),                                                      \
        "" HYPERTRACE_EACH_(HYPERTRACE_NAME_, __VA_ARGS__),                                        \
        hypertrace_types_,                                                                         \
        HYPERTRACE_COUNT_(__VA_ARGS__),                                                            \
        0,                                                                                         \
        0,                                                                                         \
        0};

/*
 * A call site's names as a note of the program's file, which `hypertrace list` reads. Linkers that
 * remove what nothing refers to keep it, and strip does.
 */
#if defined(__GNUC__) && defined(__ELF__)
#define HYPERTRACE_NOTE_(...)                                                                      \
    __asm__ volatile(".pushsection .note.hypertrace,\"a\",\"note\"\n"                              \
                     ".balign 4\n"                                                                 \
                     ".4byte 11, 2f - 1f, 1\n"                                                     \
                     ".asciz \"hypertrace\"\n"                                                     \
                     ".balign 4\n"                                                                 \
                     "1: .asciz \"" HYPERTRACE_FIRST_(__VA_ARGS__, ~) "("                          \
                     HYPERTRACE_EACH_(HYPERTRACE_NAME_, __VA_ARGS__) ")\"\n"                       \
                     ".balign 4\n"                                                                 \
                     "2: .popsection\n" ::);
#else
#define HYPERTRACE_NOTE_(...)
#endif

/* A call site's values, in words. */
#define HYPERTRACE_VALUES_(...)                                                                    \
    const uint64_t hypertrace_values_[] = {HYPERTRACE_EACH_(HYPERTRACE_VALUE_, __VA_ARGS__) 0};

/*
 * The enable mask: one byte for each hash of a name; 0 means on. The library changes it while
 * the program runs.
 */
#if defined(__cplusplus)
extern "C"
#else
extern
#endif
    const uint8_t hypertrace_off_[4096];

#if defined(__GNUC__)
#define HYPERTRACE_LOAD_(type, from, order) __atomic_load_n(&(from), __ATOMIC_##order)
#else
#define HYPERTRACE_LOAD_(type, from, order) (*HYPERTRACE_CAST_(const volatile type *, &(from)))
#endif

#if defined(__OPTIMIZE__) || defined(__cplusplus)
#define HYPERTRACE_IS_ON_(site, name)                                                              \
    (HYPERTRACE_LOAD_(uint8_t, hypertrace_off_[HYPERTRACE_SLOT_(name)], RELAXED) == 0)
#else
/* The hash is only known at run time. The library computes it at the first event. */
#define HYPERTRACE_IS_ON_(site, name)                                                              \
    (HYPERTRACE_LOAD_(uint32_t, (site).state, ACQUIRE) == 0 ||                                     \
     HYPERTRACE_LOAD_(uint8_t, hypertrace_off_[(site).name_hash & 4095], RELAXED) == 0)
#endif

/* Dispatch on the form of a field: (name, value) or a variable. */
#define HYPERTRACE_MEMBER_(field) HYPERTRACE_AS_(HYPERTRACE_MEMBER_, field)
#define HYPERTRACE_MEMBER_BARE_(field) char field;
#define HYPERTRACE_MEMBER_PAIR_(field) HYPERTRACE_MEMBER_OF_ field
#define HYPERTRACE_MEMBER_OF_(name, ...) char name;

#define HYPERTRACE_NAME_(field) HYPERTRACE_AS_(HYPERTRACE_NAME_, field)
#define HYPERTRACE_NAME_BARE_(field) #field ","
#define HYPERTRACE_NAME_PAIR_(field) HYPERTRACE_NAME_OF_ field
#define HYPERTRACE_NAME_OF_(name, ...) #name ","

#define HYPERTRACE_TYPE_OF_(field) HYPERTRACE_AS_(HYPERTRACE_TYPE_OF_, field)
#define HYPERTRACE_TYPE_OF_BARE_(field) HYPERTRACE_TYPE_(field),
#define HYPERTRACE_TYPE_OF_PAIR_(field) HYPERTRACE_TYPE_OF_PAIRS_ field
#define HYPERTRACE_TYPE_OF_PAIRS_(name, ...) HYPERTRACE_TYPE_((__VA_ARGS__)),

#define HYPERTRACE_VALUE_(field) HYPERTRACE_AS_(HYPERTRACE_VALUE_, field)
#define HYPERTRACE_VALUE_BARE_(field) HYPERTRACE_WORD_(field),
#define HYPERTRACE_VALUE_PAIR_(field) HYPERTRACE_VALUE_OF_ field
#define HYPERTRACE_VALUE_OF_(name, ...) HYPERTRACE_WORD_((__VA_ARGS__)),

/* Calls macro##BARE_ or macro##PAIR_. HYPERTRACE_PROBE_ expands only before a parenthesis. */
#define HYPERTRACE_AS_(macro, field) HYPERTRACE_JOIN_(macro, HYPERTRACE_KIND_(field))(field)
#define HYPERTRACE_JOIN_(a, b) HYPERTRACE_JOINED_(a, b)
#define HYPERTRACE_JOINED_(a, b) a##b
#define HYPERTRACE_KIND_(field) HYPERTRACE_SECOND_(HYPERTRACE_PROBE_ field, BARE_, ~)
#define HYPERTRACE_PROBE_(...) ~, PAIR_
#define HYPERTRACE_SECOND_(...) HYPERTRACE_SECOND_OF_(__VA_ARGS__)
#define HYPERTRACE_SECOND_OF_(a, b, ...) b

#define HYPERTRACE_FIRST_(name, ...) name

/* macro(field) for each field after the name, and the number of fields. */
#define HYPERTRACE_EACH_(macro, ...)                                                               \
    HYPERTRACE_CAT_(HYPERTRACE_EACH_, HYPERTRACE_COUNT_(__VA_ARGS__))(macro, __VA_ARGS__)
#define HYPERTRACE_CAT_(a, b) HYPERTRACE_CATTED_(a, b)
#define HYPERTRACE_CATTED_(a, b) a##b##_
#define HYPERTRACE_COUNT_(...)                                                                     \
    HYPERTRACE_LAST_(__VA_ARGS__, 16, 15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0, ~)
#define HYPERTRACE_HAS_FIELDS_(...)                                                                \
    HYPERTRACE_LAST_(__VA_ARGS__, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 0, ~)
#define HYPERTRACE_LAST_(name, a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p, count, ...) count

#define HYPERTRACE_EACH_0_(m, name)
#define HYPERTRACE_EACH_1_(m, name, a) m(a)
#define HYPERTRACE_EACH_2_(m, name, a, b) m(a) m(b)
#define HYPERTRACE_EACH_3_(m, name, a, b, c) m(a) m(b) m(c)
#define HYPERTRACE_EACH_4_(m, name, a, b, c, d) m(a) m(b) m(c) m(d)
#define HYPERTRACE_EACH_5_(m, name, a, b, c, d, e) m(a) m(b) m(c) m(d) m(e)
#define HYPERTRACE_EACH_6_(m, name, a, b, c, d, e, f) m(a) m(b) m(c) m(d) m(e) m(f)
#define HYPERTRACE_EACH_7_(m, name, a, b, c, d, e, f, g) m(a) m(b) m(c) m(d) m(e) m(f) m(g)
#define HYPERTRACE_EACH_8_(m, name, a, b, c, d, e, f, g, h) m(a) m(b) m(c) m(d) m(e) m(f) m(g) m(h)
#define HYPERTRACE_EACH_9_(m, name, a, b, c, d, e, f, g, h, i)                                     \
    m(a) m(b) m(c) m(d) m(e) m(f) m(g) m(h) m(i)
#define HYPERTRACE_EACH_10_(m, name, a, b, c, d, e, f, g, h, i, j)                                 \
    m(a) m(b) m(c) m(d) m(e) m(f) m(g) m(h) m(i) m(j)
#define HYPERTRACE_EACH_11_(m, name, a, b, c, d, e, f, g, h, i, j, k)                              \
    m(a) m(b) m(c) m(d) m(e) m(f) m(g) m(h) m(i) m(j) m(k)
#define HYPERTRACE_EACH_12_(m, name, a, b, c, d, e, f, g, h, i, j, k, l)                           \
    m(a) m(b) m(c) m(d) m(e) m(f) m(g) m(h) m(i) m(j) m(k) m(l)
#define HYPERTRACE_EACH_13_(m, name, a, b, c, d, e, f, g, h, i, j, k, l, n)                        \
    m(a) m(b) m(c) m(d) m(e) m(f) m(g) m(h) m(i) m(j) m(k) m(l) m(n)
#define HYPERTRACE_EACH_14_(m, name, a, b, c, d, e, f, g, h, i, j, k, l, n, o)                     \
    m(a) m(b) m(c) m(d) m(e) m(f) m(g) m(h) m(i) m(j) m(k) m(l) m(n) m(o)
#define HYPERTRACE_EACH_15_(m, name, a, b, c, d, e, f, g, h, i, j, k, l, n, o, p)                  \
    m(a) m(b) m(c) m(d) m(e) m(f) m(g) m(h) m(i) m(j) m(k) m(l) m(n) m(o) m(p)
#define HYPERTRACE_EACH_16_(m, name, a, b, c, d, e, f, g, h, i, j, k, l, n, o, p, q)               \
    m(a) m(b) m(c) m(d) m(e) m(f) m(g) m(h) m(i) m(j) m(k) m(l) m(n) m(o) m(p) m(q)

#if defined(__cplusplus)

#define HYPERTRACE_CAST_(type, value) reinterpret_cast<type>(value)
#define HYPERTRACE_U64_(value) static_cast<uint64_t>(value)
#define HYPERTRACE_TYPE_(value) (hypertrace_::type_of<decltype(hypertrace_::plain(value))>())
#define HYPERTRACE_WORD_(value) (hypertrace_::word(hypertrace_::plain(value)))

/* A constant expression: computed at compile time. */
#define HYPERTRACE_SLOT_(name)                                                                     \
    (std::integral_constant<size_t, hypertrace_::slot("" name, sizeof("" name) - 1)>::value)

namespace hypertrace_ {

/* FNV-1a, its low 12 bits. */
HYPERTRACE_UNSEEN_ constexpr size_t slot(const char *name, size_t length) {
    uint32_t hash = 2166136261u;
    for (size_t i = 0; i < length; i++) {
        hash = (hash ^ static_cast<unsigned char>(name[i])) * 16777619u;
    }
    return hash & 4095;
}

/* By value: an array is a pointer then, and nothing is const. */
template <typename T> HYPERTRACE_UNSEEN_ constexpr T plain(T it) { return it; }

template <typename T> HYPERTRACE_UNSEEN_ constexpr bool is_string() {
    return std::is_same<T, char *>::value || std::is_same<T, const char *>::value;
}

template <typename T> HYPERTRACE_UNSEEN_ constexpr unsigned char type_of() {
    if constexpr (std::is_enum<T>::value) {
        return type_of<typename std::underlying_type<T>::type>();
    } else if constexpr (std::is_same<T, bool>::value) {
        return HYPERTRACE_TYPE_BOOL;
    } else if constexpr (std::is_integral<T>::value) {
        static_assert(sizeof(T) <= 8, "an integer field has at most 64 bits");
        return static_cast<unsigned char>(
            (std::is_signed<T>::value ? HYPERTRACE_TYPE_I8 : HYPERTRACE_TYPE_U8) +
            (sizeof(T) == 1 ? 0 : sizeof(T) == 2 ? 1 : sizeof(T) == 4 ? 2 : 3));
    } else if constexpr (std::is_floating_point<T>::value) {
        static_assert(sizeof(T) <= sizeof(double), "a long double is no field");
        return HYPERTRACE_TYPE_F64;
    } else if constexpr (is_string<T>()) {
        return HYPERTRACE_TYPE_STR;
    } else {
        static_assert(std::is_pointer<T>::value || std::is_null_pointer<T>::value,
                      "a field is a number, a string or a pointer to an object");
        return HYPERTRACE_TYPE_X64;
    }
}

template <typename T> HYPERTRACE_UNSEEN_ inline uint64_t word(T value) {
    if constexpr (std::is_floating_point<T>::value) {
        const double number = static_cast<double>(value);
        uint64_t bits = 0;
        std::memcpy(&bits, &number, sizeof bits);
        return bits;
    } else if constexpr (std::is_null_pointer<T>::value) {
        return 0;
    } else if constexpr (std::is_pointer<T>::value) {
        return static_cast<uint64_t>(reinterpret_cast<uintptr_t>(value));
    } else {
        /* Signed values are extended by their sign. */
        return static_cast<uint64_t>(value);
    }
}

} // namespace hypertrace_

#else

#define HYPERTRACE_CAST_(type, value) ((type)(value))
#define HYPERTRACE_U64_(value) ((uint64_t)(value))

#if CHAR_MIN < 0
#define HYPERTRACE_TYPE_CHAR_ HYPERTRACE_TYPE_I8
#else
#define HYPERTRACE_TYPE_CHAR_ HYPERTRACE_TYPE_U8
#endif
#if LONG_MAX > 0x7fffffff
#define HYPERTRACE_TYPE_LONG_ HYPERTRACE_TYPE_I64
#define HYPERTRACE_TYPE_ULONG_ HYPERTRACE_TYPE_U64
#else
#define HYPERTRACE_TYPE_LONG_ HYPERTRACE_TYPE_I32
#define HYPERTRACE_TYPE_ULONG_ HYPERTRACE_TYPE_U32
#endif

#define HYPERTRACE_TYPE_(value)                                                                    \
    _Generic((value),                                                                              \
        _Bool: HYPERTRACE_TYPE_BOOL,                                                               \
        char: HYPERTRACE_TYPE_CHAR_,                                                               \
        signed char: HYPERTRACE_TYPE_I8,                                                           \
        unsigned char: HYPERTRACE_TYPE_U8,                                                         \
        short: HYPERTRACE_TYPE_I16,                                                                \
        unsigned short: HYPERTRACE_TYPE_U16,                                                       \
        int: HYPERTRACE_TYPE_I32,                                                                  \
        unsigned int: HYPERTRACE_TYPE_U32,                                                         \
        long: HYPERTRACE_TYPE_LONG_,                                                               \
        unsigned long: HYPERTRACE_TYPE_ULONG_,                                                     \
        long long: HYPERTRACE_TYPE_I64,                                                            \
        unsigned long long: HYPERTRACE_TYPE_U64,                                                   \
        float: HYPERTRACE_TYPE_F64,                                                                \
        double: HYPERTRACE_TYPE_F64,                                                               \
        char *: HYPERTRACE_TYPE_STR,                                                               \
        const char *: HYPERTRACE_TYPE_STR,                                                         \
        default: HYPERTRACE_TYPE_X64)

#define HYPERTRACE_WORD_(value)                                                                    \
    _Generic((value),                                                                              \
        _Bool: hypertrace_unsigned_,                                                               \
        char: hypertrace_signed_,                                                                  \
        signed char: hypertrace_signed_,                                                           \
        unsigned char: hypertrace_unsigned_,                                                       \
        short: hypertrace_signed_,                                                                 \
        unsigned short: hypertrace_unsigned_,                                                      \
        int: hypertrace_signed_,                                                                   \
        unsigned int: hypertrace_unsigned_,                                                        \
        long: hypertrace_signed_,                                                                  \
        unsigned long: hypertrace_unsigned_,                                                       \
        long long: hypertrace_signed_,                                                             \
        unsigned long long: hypertrace_unsigned_,                                                  \
        float: hypertrace_double_,                                                                 \
        double: hypertrace_double_,                                                                \
        default: hypertrace_pointer_)(value)

#if defined(__OPTIMIZE__)
/*
 * FNV-1a, its low 12 bits. Not a loop, so that compilers make a number of it however long the name
 * is: 64 bytes at most.
 */
#define HYPERTRACE_SLOT_(name) (hypertrace_slot_("" name, sizeof("" name) - 1))
#define HYPERTRACE_HASH_1_(i)                                                                      \
    if ((i) < length) {                                                                            \
        hash = (hash ^ (unsigned char)name[i]) * 16777619u;                                        \
    }
#define HYPERTRACE_HASH_4_(i)                                                                      \
    HYPERTRACE_HASH_1_(i)                                                                          \
    HYPERTRACE_HASH_1_((i) + 1) HYPERTRACE_HASH_1_((i) + 2) HYPERTRACE_HASH_1_((i) + 3)
#define HYPERTRACE_HASH_16_(i)                                                                     \
    HYPERTRACE_HASH_4_(i)                                                                          \
    HYPERTRACE_HASH_4_((i) + 4) HYPERTRACE_HASH_4_((i) + 8) HYPERTRACE_HASH_4_((i) + 12)
#if defined(__GNUC__)
__attribute__((always_inline))
#endif
HYPERTRACE_UNSEEN_ static inline size_t
hypertrace_slot_(const char *name, size_t length) {
    uint32_t hash = 2166136261u;
    HYPERTRACE_HASH_16_(0)
    HYPERTRACE_HASH_16_(16)
    HYPERTRACE_HASH_16_(32)
    HYPERTRACE_HASH_16_(48)
    return hash & 4095;
}
#endif

HYPERTRACE_UNSEEN_ static inline uint64_t hypertrace_signed_(int64_t value) { return (uint64_t)value; }
HYPERTRACE_UNSEEN_ static inline uint64_t hypertrace_unsigned_(uint64_t value) { return value; }
HYPERTRACE_UNSEEN_ static inline uint64_t hypertrace_pointer_(const volatile void *value) {
    return (uint64_t)(uintptr_t)value;
}
HYPERTRACE_UNSEEN_ static inline uint64_t hypertrace_double_(double value) {
    uint64_t bits = 0;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

#endif

#endif  /* HYPERTRACE_H */
