/* Events with every type of field and its extreme values. Values of events that are off must not be computed.
 * Exit code 0: success. */
#include <hypertrace.h>

static int computed = 0;

static int compute(void) { return ++computed; }

int main(void) {
    char why[512];
    if (!hypertrace_open(NULL, why, sizeof why)) {
        /* Without a host, values are not computed after the first event. */
        for (int i = 0; i < 10; i++) {
            HYPERTRACE_EVENT("off", (n, compute()));
        }
        /* The reason is cut to the buffer's size. */
        char start[8];
        if (hypertrace_open(NULL, start, sizeof start) || strlen(start) != sizeof start - 1 ||
            strncmp(start, why, sizeof start - 1) != 0 || hypertrace_wait_for_room(1, 1)) {
            return 3;
        }
        return computed <= 1 ? 4 : 5;
    }
    HYPERTRACE_EVENT("none");

    const signed char i8 = SCHAR_MIN;
    const short i16 = SHRT_MIN;
    const int i32 = INT_MIN;
    const long i64 = LONG_MIN;
    const long long ll = LLONG_MIN;
    HYPERTRACE_EVENT("is", i8, i16, i32, i64, ll);

    const unsigned char u8 = UCHAR_MAX;
    const unsigned short u16 = USHRT_MAX;
    const unsigned u32 = UINT_MAX;
    const unsigned long u64 = ULONG_MAX;
    const unsigned long long ull = ULLONG_MAX;
    HYPERTRACE_EVENT("us", u8, u16, u32, u64, ull);

    volatile bool yes = true;
    const float f = 0.5f;
    const double d = -1e300;
    enum { RED, GREEN } color = GREEN;
    HYPERTRACE_EVENT("others", yes, (no, (bool)0), f, d, (color, (int)color), (zero, 0));

    char array[] = "array";
    char *pointer = array;
    const char *text = "";
    const char *null = NULL;
    const char *const utf8 = "h\xc3\xa4llo";
    HYPERTRACE_EVENT("strings", array, pointer, (rest, pointer + 1), text, null, utf8,
                     (literal, "a, (b)"));

    int *const at = (int *)0x1234;
    const volatile void *const v = (const void *)0xffff800000000000;
    HYPERTRACE_EVENT("pointers", at, v);

    const int a = 1, b = 2, c = 3, e = 4;
    HYPERTRACE_EVENT("most", a, b, c, e, (f5, 5), (f6, 6), (f7, 7), (f8, 8), (f9, 9), (f10, 10),
                     (f11, 11), (f12, 12), (f13, 13), (f14, 14), (f15, 15), (f16, 16));

    enum hypertrace_outcome outcome = HYPERTRACE_OUTCOME_FAILED;
    HYPERTRACE_COMMIT(&outcome, "committed", (s, "commit"), a);
    HYPERTRACE_COMMIT(NULL, "committed", (s, "again"), a);
    struct hypertrace_reply reply;
    HYPERTRACE_REFERENCE_POINT(&reply, "point", a, (s, "point"));
    HYPERTRACE_REFERENCE_POINT(NULL, "point", a, (s, "again"));
    if (outcome != HYPERTRACE_OUTCOME_RECORDED || reply.outcome != HYPERTRACE_OUTCOME_RECORDED ||
        reply.before > reply.after) {
        return 6;
    }

    HYPERTRACE_REGION_BEGIN("region", 7);
    if (a == 1)
        HYPERTRACE_EVENT("if");
    else
        HYPERTRACE_EVENT("else");
    HYPERTRACE_REGION_END("region", 7);
    HYPERTRACE_REGION_BEGIN("wide", a + 7, a, (s, "x"));
    HYPERTRACE_REGION_END("wide", a + 7);

    const uint64_t more[] = {2, 3};
    hypertrace_legacy(1, more, 2);
    hypertrace_legacy(9, NULL, 0);

    /* The library does not send an event without a valid schema, but counts the event. */
    for (int i = 0; i < 3; i++) {
        HYPERTRACE_EVENT("no name", i);
        HYPERTRACE_COMMIT(&outcome, "", i);
        HYPERTRACE_REFERENCE_POINT(&reply, "1st", i);
        if (outcome != HYPERTRACE_OUTCOME_REFUSED || reply.outcome != HYPERTRACE_OUTCOME_REFUSED) {
            return 8;
        }
    }
    struct hypertrace_counts counts;
    memset(&counts, 0xff, sizeof counts);
    hypertrace_counts(&counts, sizeof counts);
    hypertrace_poll();
    return counts.refused == 9 && counts.unattached == 0 && counts.unanswered == 0 ? 0 : 9;
}
