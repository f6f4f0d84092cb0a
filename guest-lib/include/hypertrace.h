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
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <type_traits>
#include <utility>
#endif

/**
 * `uint8_t`. These constants are the field types that the macros pass to the library.
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
     * The host had no room, or did not answer. The event is counted.
     */
    HYPERTRACE_OUTCOME_FAILED = 2,
    /**
     * The host rejects the event as malformed, and counts it.
     */
    HYPERTRACE_OUTCOME_INVALID = 3,
    /**
     * The event exceeds the client's rate limit, and is counted.
     */
    HYPERTRACE_OUTCOME_LIMITED = 4,
    /**
     * The ring has no room for the event, which is counted.
     */
    HYPERTRACE_OUTCOME_FULL = 5,
    /**
     * The thread is in the middle of another event, because a signal handler has interrupted that event. The
     * handler's event is counted.
     */
    HYPERTRACE_OUTCOME_BUSY = 6,
    /**
     * The thread has no client, or there is no device: see `hypertrace_open`.
     */
    HYPERTRACE_OUTCOME_NO_CLIENT = 7,
    /**
     * The event's names and types make no valid schema. The event is counted.
     */
    HYPERTRACE_OUTCOME_REFUSED = 8,
};

/**
 * A call site. The macros define a static of this type for each call site. The program fills in the fields
 * marked "to be filled in". All other fields are zero at first and belong to the library.
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
     * The host's raw counter, in its own ticks, at a time between `before` and `after`.
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
     * The file of a segment. If NULL, the library uses the file that the environment variable
     * HYPERTRACE_SEGMENT names, if this variable is set.
     */
    const char *segment;
    /**
     * The PCI function, as in "0000:00:04.0". If NULL, the library uses the first function that
     * is a hypertrace device.
     */
    const char *function;
    /**
     * The physical address of the MMIO window. If 0, the library uses the address on the kernel
     * command line, if there is one.
     */
    uint64_t window;
};

/**
 * Counts of this process's clients and events. The host does not show these counts.
 * The counts are running totals; a forked child begins at zero.
 */
struct hypertrace_counts {
    /**
     * Events of threads that had no client. There are three reasons: no client was free, the
     * thread was ending, or another thread took more than a second to open the device.
     */
    uint64_t unattached;
    /**
     * Clients that a thread abandoned because a signal handler had jumped out
     * of an event.
     */
    uint64_t abandoned;
    /**
     * Clients that a thread gave up because another holder had taken them.
     */
    uint64_t taken;
    /**
     * Reference points without an answer of a segment's host: either the host did not answer
     * within a second, or the host was already dead and no thread waited.
     */
    uint64_t unanswered;
    /**
     * Events whose names and types make no valid schema. A fork does not reset this count.
     */
    uint64_t refused;
    /**
     * Events that no host took, because the host had ended.
     */
    uint64_t host_ended;
};

#ifdef __cplusplus
extern "C" {
#endif /* __cplusplus */

/**
 * Records an event. HYPERTRACE_EVENT calls this function when the event is on.
 *
 * # Safety
 * `site` is a call site that the macros have made. `values` has one word for each field of the
 * call site.
 */
enum hypertrace_outcome hypertrace_event(struct hypertrace_site *site, const uint64_t *values);

/**
 * Records an event that must not be dropped, for HYPERTRACE_COMMIT. Stores the event's outcome to `outcome`,
 * unless `outcome` is NULL.
 *
 * # Safety
 * As for `hypertrace_event`. If `outcome` is not NULL, the function may write to `outcome`.
 */
void hypertrace_commit(struct hypertrace_site *site,
                       const uint64_t *values,
                       enum hypertrace_outcome *outcome);

/**
 * Makes a reference point, for HYPERTRACE_REFERENCE_POINT. Stores the host's answer to `reply`, unless
 * `reply` is NULL.
 *
 * # Safety
 * As for `hypertrace_event`. If `reply` is not NULL, the function may write to `reply`.
 */
void hypertrace_reference_point(struct hypertrace_site *site,
                                const uint64_t *values,
                                struct hypertrace_reply *reply);

/**
 * Opens the device, or the segment of `hypertrace record`, for this process. If the process
 * does not call this function, the library opens the channel at the first event of the process,
 * and reports no error.
 *
 * `options` may be NULL. If there is no device and no segment, or the system refuses to open
 * one, the function returns false. In this case, if `error` is not NULL, the function stores a
 * text to `error` that says what failed, where, and what to do. The text is cut to `size` bytes,
 * including the zero at its end.
 *
 * A channel that is already open stays open.
 *
 * # Safety
 * Each pointer is NULL or valid for the use described above.
 */
bool hypertrace_open(const struct hypertrace_options *options, char *error, size_t size);

/**
 * Returns the library's version, as in "0.1.0". A program that loads the library at run time compares the
 * versions: until 1.0, libraries of two minor versions may have different functions and structures.
 */
const char *hypertrace_version(void);

/**
 * Stores the span during which the host records this process, in the form of W3C's Trace
 * Context: the value of a `traceparent` header, which has 55 characters, and a zero. The
 * program's own tracing can continue the trace of this span. If no event has looked for the
 * device, this function looks for the device.
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
 * Immediately applies the host's enable mask, and reports to the host how many events this
 * thread has dropped. A thread of the library applies the mask and reports dropped events every
 * 10 ms.
 */
void hypertrace_poll(void);

/**
 * Waits until the ring has room for the next `events` events of this thread. The fields of each
 * event may take at most `words` words. If there is no room, the function wakes the host and
 * waits at most a second. The function is for programs that prefer a wait to a lost event.
 * Returns false if there is still no room, if there can never be enough room, or if no host
 * drains this thread's ring.
 *
 * A field takes one word; a string takes its bytes and 4 more, rounded up to words.
 */
bool hypertrace_wait_for_room(size_t events, size_t words);

/**
 * Records an event of the interface of 2016, which has only numbers: `arg1` and the words at
 * `args`. The device has a maximum number of arguments. All further arguments are left out. The
 * event costs one exit. If the channel is a segment, the event is a commit.
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
 * Records an event `function_module` for each file of code that is loaded into the process. The
 * event's fields are the file's path, the difference between an address in memory and the same
 * address in the file, and the file's begin and end in memory. Like the first event, this
 * function opens the channel.
 *
 * HYPERTRACE_FUNCTIONS calls this function before `main`. A program that later loads libraries with
 * instrumented functions (`dlopen`) calls this function again. Without new libraries, a call records
 * nothing.
 */
void hypertrace_function_modules(void);

#ifdef __cplusplus
}  /* extern "C" */
#endif  /* __cplusplus */

/*
 * The macros, for C11 and C++11. All macros are statements, except for HYPERTRACE_SCOPE, which is a
 * declaration.
 *
 * A name is a string literal: [A-Za-z_][A-Za-z0-9_]*, at most 64 bytes. 0 to 16 fields follow the name. A
 * field is a variable or a pair (name, value) in parentheses. The name of the variable becomes the field's
 * name. Values are integers, bool, float, double, strings, and pointers to objects. A string is a char *
 * (recorded up to its zero), a std::string or a std::string_view, and is cut to 1,024 bytes. Reports show
 * other pointers in hexadecimal. A variable named like a macro or a keyword needs a pair with another name.
 *
 * Each field has the type of its value. The types of a call site never change.
 */

/*
 * HYPERTRACE_EVENT(name, field..): records an event in this thread's ring. After the first event of the call
 * site, values are not computed while the event is switched off or if there is no device. The library counts
 * events that cannot be recorded, and the host shows the count.
 */
#define HYPERTRACE_EVENT(...)                                                                      \
    do {                                                                                           \
        HYPERTRACE_SITE_(__VA_ARGS__)                                                              \
        if (HYPERTRACE_IS_ON_(hypertrace_site_, HYPERTRACE_FIRST_(__VA_ARGS__, ~))) {              \
            HYPERTRACE_NOTE_(__VA_ARGS__)                                                          \
            (void)hypertrace_event(&hypertrace_site_, HYPERTRACE_WORDS_(__VA_ARGS__));             \
        }                                                                                          \
    } while (0)

/*
 * HYPERTRACE_COMMIT(outcome, name, field..): records an event that must not be dropped. The event may use the
 * reserved part of the ring. If the reserved part is full, too, the statement waits at most a second for the
 * host to drain the ring. `outcome` is an enum hypertrace_outcome * or NULL. If the outcome is
 * HYPERTRACE_OUTCOME_RECORDED, the event is in memory that the host shares. The event is then stored after
 * all earlier events of this thread, and survives this process. The host may not have seen the event yet.
 */
#define HYPERTRACE_COMMIT(outcome, ...)                                                            \
    do {                                                                                           \
        HYPERTRACE_SITE_(__VA_ARGS__)                                                              \
        HYPERTRACE_NOTE_(__VA_ARGS__)                                                              \
        hypertrace_commit(&hypertrace_site_, HYPERTRACE_WORDS_(__VA_ARGS__), (outcome));           \
    } while (0)

/*
 * HYPERTRACE_REFERENCE_POINT(reply, name, field..): records an event that is ordered with the host's events.
 * The host has handled the event when the statement ends. In a VM, the statement costs one exit; outside of
 * VMs, the statement waits for the host's thread, at most a second. `reply` is a struct hypertrace_reply * or
 * NULL.
 */
#define HYPERTRACE_REFERENCE_POINT(reply, ...)                                                     \
    do {                                                                                           \
        HYPERTRACE_SITE_(__VA_ARGS__)                                                              \
        HYPERTRACE_NOTE_(__VA_ARGS__)                                                              \
        hypertrace_reference_point(&hypertrace_site_, HYPERTRACE_WORDS_(__VA_ARGS__), (reply));    \
    } while (0)

/*
 * HYPERTRACE_REGION_BEGIN(name, id, field..), HYPERTRACE_REGION_END(name, id): mark the begin and the end of
 * a region of interest with the events NAME_begin(id, field..) and NAME_end(id). The id is a number that
 * distinguishes each pass through the region from other passes. A region has 0 to 15 fields.
 */
#define HYPERTRACE_REGION_BEGIN(name, ...)                                                         \
    HYPERTRACE_CAT_(HYPERTRACE_BEGIN_, HYPERTRACE_HAS_FIELDS_(__VA_ARGS__))(name, __VA_ARGS__)
#define HYPERTRACE_BEGIN_0_(name, id_)                                                             \
    HYPERTRACE_EVENT(name "_begin", (id, HYPERTRACE_U64_(id_)))
#define HYPERTRACE_BEGIN_1_(name, id_, ...)                                                        \
    HYPERTRACE_EVENT(name "_begin", (id, HYPERTRACE_U64_(id_)), __VA_ARGS__)
#define HYPERTRACE_REGION_END(name, id_) HYPERTRACE_EVENT(name "_end", (id, HYPERTRACE_U64_(id_)))

/*
 * HYPERTRACE_SCOPE(name, id, field..): a region that ends when the program leaves the scope of this
 * declaration: at the scope's last line, or by return, break, goto or an exception. The macro needs gcc or
 * clang. One line of source can contain only one such declaration.
 */
#define HYPERTRACE_SCOPE(name, ...)                                                                \
    __attribute__((cleanup(hypertrace_scope_end_), unused)) const struct hypertrace_scope_         \
    HYPERTRACE_JOIN_(hypertrace_scope_at_, __LINE__) = __extension__({                             \
        const uint64_t hypertrace_id_ = HYPERTRACE_U64_((HYPERTRACE_FIRST_(__VA_ARGS__, ~)));      \
        HYPERTRACE_CAT_(HYPERTRACE_SCOPE_, HYPERTRACE_HAS_FIELDS_(__VA_ARGS__))                    \
        (name, __VA_ARGS__);                                                                       \
        HYPERTRACE_SITE_(name "_end", (id, HYPERTRACE_U64_(0)))                                    \
        HYPERTRACE_NOTE_(name "_end", (id, ))                                                      \
        hypertrace_scope_of_(&hypertrace_site_, hypertrace_id_);                                   \
    })
#define HYPERTRACE_SCOPE_0_(name, id_) HYPERTRACE_REGION_BEGIN(name, hypertrace_id_)
#define HYPERTRACE_SCOPE_1_(name, id_, ...)                                                        \
    HYPERTRACE_REGION_BEGIN(name, hypertrace_id_, __VA_ARGS__)

/*
 * HYPERTRACE_FUNCTIONS: records the events function_entry(address) and function_exit(address) for each call
 * of a function that the compiler has instrumented. The address is the address of the function. Compile the
 * functions' sources with -finstrument-functions, and define this macro in at least one source of the program
 * before it includes this header: cc -finstrument-functions -DHYPERTRACE_FUNCTIONS.
 *
 * The library opens the channel before `main`, like the first event. Calls before the opening are not
 * recorded. The events of `hypertrace_function_modules` show which file of code a function's address belongs
 * to. The compiler does not instrument functions with __attribute__((no_instrument_function)).
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

/*
 * Instrumented code calls these functions. The definitions are weak, so that several sources may contain
 * them.
 */
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

/*
 * Runs before the constructors of C++ objects, because these constructors have the lowest priority.
 */
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
 * Writes a call site's names as a note into the program's file, for `hypertrace info --events`. Linkers that
 * remove unreferenced sections keep notes. The command strip keeps notes, too.
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

/*
 * The enable mask: one byte for each hash of a name; 0 means on. The library changes the mask while the
 * program runs.
 */
#if defined(__cplusplus)
extern "C"
#else
extern
#endif
    const uint8_t hypertrace_off_[4096];

#if defined(__cplusplus)
#define HYPERTRACE_CAST_(type, value) reinterpret_cast<type>(value)
#define HYPERTRACE_BYTE_(value) static_cast<unsigned char>(value)
#define HYPERTRACE_U64_(value) static_cast<uint64_t>(value)
#else
#define HYPERTRACE_CAST_(type, value) ((type)(value))
#define HYPERTRACE_BYTE_(value) ((unsigned char)(value))
#define HYPERTRACE_U64_(value) ((uint64_t)(value))
#endif

#if defined(__GNUC__)
#define HYPERTRACE_LOAD_(type, from, order) __atomic_load_n(&(from), __ATOMIC_##order)
#else
#define HYPERTRACE_LOAD_(type, from, order) (*HYPERTRACE_CAST_(const volatile type *, &(from)))
#endif

/*
 * True if the event of a call site is on, or if the library does not know the call site yet. The library
 * knows a call site after the first event of the call site.
 */
#define HYPERTRACE_SITE_IS_ON_(site)                                                               \
    (HYPERTRACE_LOAD_(uint32_t, (site).state, ACQUIRE) == 0 ||                                     \
     HYPERTRACE_LOAD_(uint8_t, hypertrace_off_[(site).name_hash & 4095], RELAXED) == 0)

#if defined(__OPTIMIZE__)
#define HYPERTRACE_IS_ON_(site, name)                                                              \
    (HYPERTRACE_LOAD_(uint8_t, hypertrace_off_[hypertrace_slot_("" name, sizeof("" name) - 1)],    \
                      RELAXED) == 0)
#else
/*
 * Without optimisation, the compiler does not compute the hash of a name, so the hash is known only
 * at run time.
 */
#define HYPERTRACE_IS_ON_(site, name) HYPERTRACE_SITE_IS_ON_(site)
#endif

/*
 * Returns the low 12 bits of a name's FNV-1a hash. The function has no loop, so that compilers compute the
 * hash of every name at compile time, up to the longest name of 64 bytes.
 */
#define HYPERTRACE_HASH_1_(i)                                                                      \
    if ((i) < length) {                                                                            \
        hash = (hash ^ HYPERTRACE_BYTE_(name[i])) * 16777619u;                                     \
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

#if defined(__GNUC__)
/* A region of HYPERTRACE_SCOPE. */
struct hypertrace_scope_ {
    struct hypertrace_site *end;
    uint64_t id;
};

HYPERTRACE_UNSEEN_ static inline struct hypertrace_scope_
hypertrace_scope_of_(struct hypertrace_site *end, uint64_t id) {
    const struct hypertrace_scope_ scope = {end, id};
    return scope;
}

HYPERTRACE_UNSEEN_ static inline void hypertrace_scope_end_(const struct hypertrace_scope_ *scope) {
    if (HYPERTRACE_SITE_IS_ON_(*scope->end)) {
        (void)hypertrace_event(scope->end, &scope->id);
    }
}
#endif

/*
 * A field is a pair (name, value) or a variable. Each of these macros has a variant for pairs and a variant
 * for variables, and calls the variant that suits the field.
 */
#define HYPERTRACE_MEMBER_(field) HYPERTRACE_AS_(HYPERTRACE_MEMBER_, field)
#define HYPERTRACE_MEMBER_BARE_(field) HYPERTRACE_MEMBER_OF_(field, field)
#define HYPERTRACE_MEMBER_PAIR_(field) HYPERTRACE_MEMBER_OF_ field
#define HYPERTRACE_MEMBER_OF_(name, ...)                                                           \
    char name;                                                                                     \
    HYPERTRACE_CHECK_((__VA_ARGS__))

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

/*
 * Calls macro##PAIR_ for a pair in parentheses, and macro##BARE_ for a variable. HYPERTRACE_PROBE_ finds out
 * whether a field is a pair, because the compiler expands this macro only before a parenthesis.
 */
#define HYPERTRACE_AS_(macro, field) HYPERTRACE_JOIN_(macro, HYPERTRACE_KIND_(field))(field)
#define HYPERTRACE_JOIN_(a, b) HYPERTRACE_JOINED_(a, b)
#define HYPERTRACE_JOINED_(a, b) a##b
#define HYPERTRACE_KIND_(field) HYPERTRACE_SECOND_(HYPERTRACE_PROBE_ field, BARE_, ~)
#define HYPERTRACE_PROBE_(...) ~, PAIR_
#define HYPERTRACE_SECOND_(...) HYPERTRACE_SECOND_OF_(__VA_ARGS__)
#define HYPERTRACE_SECOND_OF_(a, b, ...) b

#define HYPERTRACE_FIRST_(name, ...) name

/*
 * HYPERTRACE_EACH_ calls macro(field) for each field after the name, and HYPERTRACE_COUNT_ counts
 * the fields.
 */
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

/* In C++, templates check the types of the fields. */
#define HYPERTRACE_CHECK_(value)
#define HYPERTRACE_FIELD_(value) hypertrace_::field<typename std::decay<decltype((value))>::type>
#define HYPERTRACE_TYPE_(value) (HYPERTRACE_FIELD_(value)::type)
#define HYPERTRACE_WORD_(value) (hypertrace_::word(HYPERTRACE_FIELD_(value)::of(value)))

/*
 * Temporary objects in a call site's values live to the end of the expression. The library records
 * the event before the end of the expression.
 */
#define HYPERTRACE_WORDS_(...)                                                                     \
    (hypertrace_::words<HYPERTRACE_COUNT_(__VA_ARGS__) + 1>{                                       \
        {HYPERTRACE_EACH_(HYPERTRACE_VALUE_, __VA_ARGS__) 0}}                                      \
         .all)

namespace hypertrace_ {

template <size_t N> struct words { uint64_t all[N]; };

/*
 * A copy of a string that has no zero at its end. The copy has one byte more than a field can have.
 * If the copy fills this byte, the library knows that the string was cut.
 */
struct text {
    char bytes[1026];
};

HYPERTRACE_UNSEEN_ inline uint64_t word(uint64_t word) { return word; }
HYPERTRACE_UNSEEN_ inline uint64_t word(const char *text) {
    return static_cast<uint64_t>(reinterpret_cast<uintptr_t>(text));
}
HYPERTRACE_UNSEEN_ inline uint64_t word(const text &copy) { return word(copy.bytes); }

template <bool B> using when = typename std::enable_if<B>::type;

template <typename> struct never : std::false_type {};

/* A field's type, and the object that contains the field's word. */
template <typename T, typename = void> struct field {
    static constexpr unsigned char type = 0;
    template <typename U> static uint64_t of(const U &) { return 0; }
    /* This check stands last. After a failed check, clang would not know the names that follow, and would
       report further errors. */
    static_assert(never<T>::value, "hypertrace: a field is a number, a bool, a string or a pointer");
};

template <> struct field<bool> {
    static constexpr unsigned char type = HYPERTRACE_TYPE_BOOL;
    HYPERTRACE_UNSEEN_ static uint64_t of(bool value) { return value; }
};

template <typename T>
struct field<T, when<std::is_integral<T>::value && sizeof(T) <= sizeof(uint64_t)>> {
    static constexpr unsigned char type =
        (std::is_signed<T>::value ? HYPERTRACE_TYPE_I8 : HYPERTRACE_TYPE_U8) +
        (sizeof(T) == 1 ? 0 : sizeof(T) == 2 ? 1 : sizeof(T) == 4 ? 2 : 3);
    /* A signed value is sign-extended. */
    HYPERTRACE_UNSEEN_ static uint64_t of(T value) { return static_cast<uint64_t>(value); }
};

template <typename T> struct field<T, when<std::is_enum<T>::value>> {
    using number = typename std::underlying_type<T>::type;
    static constexpr unsigned char type = field<number>::type;
    HYPERTRACE_UNSEEN_ static uint64_t of(T value) { return static_cast<uint64_t>(value); }
};

template <typename T>
struct field<T, when<std::is_floating_point<T>::value && sizeof(T) <= sizeof(double)>> {
    static constexpr unsigned char type = HYPERTRACE_TYPE_F64;
    HYPERTRACE_UNSEEN_ static uint64_t of(T value) {
        const double number = static_cast<double>(value);
        uint64_t bits = 0;
        std::memcpy(&bits, &number, sizeof bits);
        return bits;
    }
};

template <typename T> struct field<T *> {
    static constexpr unsigned char type = HYPERTRACE_TYPE_X64;
    HYPERTRACE_UNSEEN_ static uint64_t of(T *value) {
        return static_cast<uint64_t>(reinterpret_cast<uintptr_t>(value));
    }
};

template <> struct field<std::nullptr_t> {
    static constexpr unsigned char type = HYPERTRACE_TYPE_X64;
    HYPERTRACE_UNSEEN_ static uint64_t of(std::nullptr_t) { return 0; }
};

template <> struct field<const char *> {
    static constexpr unsigned char type = HYPERTRACE_TYPE_STR;
    HYPERTRACE_UNSEEN_ static const char *of(const char *value) { return value; }
};
template <> struct field<char *> : field<const char *> {};

template <typename T> HYPERTRACE_UNSEEN_ auto terminated(const T &value, int) -> decltype(value.c_str()) {
    return value.c_str();
}
template <typename T> HYPERTRACE_UNSEEN_ text terminated(const T &value, long) {
    text copy;
    const size_t room = sizeof copy.bytes - 1;
    const size_t size = value.size() < room ? value.size() : room;
    if (size > 0) {
        std::memcpy(copy.bytes, value.data(), size);
    }
    copy.bytes[size] = 0;
    return copy;
}

/* std::string, std::string_view, and classes like them. */
template <typename T>
struct field<T, when<std::is_same<typename T::traits_type::char_type, char>::value &&
                     std::is_same<decltype(std::declval<const T &>().data()), const char *>::value>> {
    static constexpr unsigned char type = HYPERTRACE_TYPE_STR;
    HYPERTRACE_UNSEEN_ static auto of(const T &value) -> decltype(terminated(value, 0)) {
        return terminated(value, 0);
    }
};

/*
 * The two call sites of a class `region`: one for a region's begin and one for a region's end. This memory is
 * never freed.
 */
struct region_sites {
    struct hypertrace_site begin, end;
    region_sites *next;
    size_t length;
    char names[2][65];

    /* Returns the call sites of a name, or NULL if there was no memory when the name was first used. */
    HYPERTRACE_UNSEEN_ static region_sites *of(const char *name, size_t length, size_t hash);
};

/*
 * A table of call sites. A hash of the name is the key. The table is in a template, so that several sources
 * may define it. Before C++20, an array of std::atomic would need code before main in each source.
 */
template <typename = void> struct all_region_sites {
    static region_sites *heads[64];
};
template <typename T> region_sites *all_region_sites<T>::heads[64];

inline region_sites *region_sites::of(const char *name, size_t length, size_t hash) {
    region_sites **head = &all_region_sites<>::heads[hash % 64];
    region_sites *first = __atomic_load_n(head, __ATOMIC_ACQUIRE);
    for (region_sites *sites = first; sites != nullptr; sites = sites->next) {
        if (sites->length == length && std::memcmp(sites->names[0], name, length) == 0) {
            return sites;
        }
    }
    region_sites *sites = static_cast<region_sites *>(std::calloc(1, sizeof(region_sites)));
    if (sites == nullptr) {
        return nullptr;
    }
    static const unsigned char types[] = {HYPERTRACE_TYPE_U64};
    sites->length = length;
    const char *const suffixes[] = {"_begin", "_end"};
    struct hypertrace_site *const both[] = {&sites->begin, &sites->end};
    for (size_t i = 0; i < 2; i++) {
        std::memcpy(sites->names[i], name, length);
        std::strcpy(sites->names[i] + length, suffixes[i]);
        both[i]->name = sites->names[i];
        both[i]->fields = "id,";
        both[i]->types = types;
        both[i]->count = 1;
    }
    sites->next = first;
    while (!__atomic_compare_exchange_n(head, &sites->next, sites, true, __ATOMIC_RELEASE,
                                        __ATOMIC_RELAXED)) {
    }
    return sites;
}

} // namespace hypertrace_

namespace hypertrace {

/*
 * A region of interest from here to the end of the object's life: hypertrace::region r("parse", id). The
 * name is a string literal. The first region of each name allocates memory, which is never freed.
 */
class region {
  public:
    template <size_t N>
    HYPERTRACE_UNSEEN_ region(const char (&name)[N], uint64_t id)
        : sites(hypertrace_::region_sites::of(name, N - 1, hypertrace_slot_(name, N - 1))), id(id) {
        static_assert(N <= 59, "hypertrace: a region's name has at most 58 bytes");
        if (sites != nullptr && HYPERTRACE_SITE_IS_ON_(sites->begin)) {
            (void)hypertrace_event(&sites->begin, &this->id);
        }
    }
    HYPERTRACE_UNSEEN_ ~region() {
        if (sites != nullptr && HYPERTRACE_SITE_IS_ON_(sites->end)) {
            (void)hypertrace_event(&sites->end, &id);
        }
    }
    region(const region &) = delete;
    region &operator=(const region &) = delete;

  private:
    hypertrace_::region_sites *const sites;
    const uint64_t id;
};

} // namespace hypertrace

#else

#if defined(__GNUC__)
/*
 * A field is a number of at most 64 bits, or a pointer. __builtin_classify_type returns 1 to 4 or 8
 * for numbers, and 5 for pointers.
 */
#define HYPERTRACE_IS_FIELD_(value)                                                                \
    (__builtin_classify_type(value) == 5 ||                                                        \
     (sizeof(value) <= sizeof(uint64_t) &&                                                         \
      (__builtin_classify_type(value) <= 4 || __builtin_classify_type(value) == 8)))
#define HYPERTRACE_CHECK_(value)                                                                   \
    _Static_assert(HYPERTRACE_IS_FIELD_(value),                                                    \
                   "hypertrace: a field is a number, a bool, a string or a pointer");
/* If a value cannot be a field, this macro keeps the compiler from reporting a second error. */
#define HYPERTRACE_CHECKED_(value) __builtin_choose_expr(HYPERTRACE_IS_FIELD_(value), (value), 0)
#else
#define HYPERTRACE_CHECK_(value)
#define HYPERTRACE_CHECKED_(value) (value)
#endif

#define HYPERTRACE_WORDS_(...)                                                                     \
    ((const uint64_t[]){HYPERTRACE_EACH_(HYPERTRACE_VALUE_, __VA_ARGS__) 0})

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
        default: hypertrace_pointer_)(HYPERTRACE_CHECKED_(value))

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
