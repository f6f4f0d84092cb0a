/* Code that must not compile, selected by WRONG. */
#include <hypertrace.h>

#if defined(__cplusplus)
#include <vector>
#endif

struct pair {
    int a, b;
};

void wrong(struct pair pair, struct pair *p, const int a);

void wrong(struct pair pair, struct pair *p, const int a) {
#if WRONG == 1
    HYPERTRACE_EVENT("twice", a, a);
#elif WRONG == 2
    HYPERTRACE_EVENT("no name for a field", p->a);
#elif WRONG == 3
    HYPERTRACE_EVENT("no type of field", pair);
#elif WRONG == 4
    HYPERTRACE_EVENT("17", a, (f2, 2), (f3, 3), (f4, 4), (f5, 5), (f6, 6), (f7, 7), (f8, 8), (f9, 9),
                     (f10, 10), (f11, 11), (f12, 12), (f13, 13), (f14, 14), (f15, 15), (f16, 16),
                     (f17, 17));
#elif WRONG == 5
    HYPERTRACE_EVENT("long double", (f, 1.0L));
#elif WRONG == 6
    const char *name = "not a literal";
    HYPERTRACE_EVENT(name, a);
#elif WRONG == 7
    HYPERTRACE_SCOPE("no type of field", 1, (pair, pair));
#elif WRONG == 8
    HYPERTRACE_EVENT("no type of field", (many, std::vector<int>()));
#elif WRONG == 9
    hypertrace::region region("a_name_of_a_region_that_is_one_byte_longer_than_it_can_be_1", 1);
#endif
    (void)pair, (void)p, (void)a;
}
