// What only C++ has: regions that are objects, strings that are objects, exceptions. C++11, and C++17 for string_view.
#include <hypertrace.h>

#include <stdexcept>
#include <string>
#include <thread>
#include <vector>
#if __cplusplus >= 201703L
#include <string_view>
#endif

static_assert(!std::is_copy_constructible<hypertrace::region>::value, "a region ends once");

static std::string made(size_t n) { return std::string(n, 'm'); }

static void throws(uint64_t id) {
    hypertrace::region region("object", id);
    HYPERTRACE_SCOPE("scope", id);
    throw std::runtime_error("out of both");
}

enum class Color : uint8_t { red, green };

int main() {
    for (uint64_t id = 0; id < 3; id++) {
        try {
            throws(id);
        } catch (const std::runtime_error &) {
        }
    }

    const std::string text = "a string";
    std::string &same = const_cast<std::string &>(text);
    const Color color = Color::green;
    volatile bool yes = true;
    const char *const nothing = nullptr;
    HYPERTRACE_EVENT("strings", text, same, (temporary, made(40)), (empty, std::string()),
                     (with_zero, std::string("a\0b", 3)), nothing);
    HYPERTRACE_EVENT("others", color, yes, (null, nullptr), (function, &throws), (less, 1 < 2));
    {
        HYPERTRACE_SCOPE("with_string", 7, text, (temporary, made(50)));
    }
    HYPERTRACE_COMMIT(nullptr, "committed", (temporary, made(60)));
    HYPERTRACE_REFERENCE_POINT(nullptr, "point", (temporary, made(70)));
    HYPERTRACE_EVENT("long_string", (temporary, made(5000)));
#if __cplusplus >= 201703L
    const std::string_view view = text;
    // A character of two bytes across the greatest length.
    const std::string wide = "x" + made(1022) + "\xc3\xa4";
    HYPERTRACE_EVENT("views", view, (part, view.substr(2, 3)), (empty, std::string_view()));
    HYPERTRACE_EVENT("long_view", (wide, std::string_view(wide)));
#endif

    // More names than places of the table, from several threads at once.
    std::vector<std::thread> threads;
    for (uint64_t thread = 0; thread < 4; thread++) {
        threads.emplace_back([thread] {
            for (uint64_t i = 0; i < 100; i++) {
                hypertrace::region one("one", thread * 100 + i);
                hypertrace::region other("a_name_of_the_greatest_length_that_a_region_can_have_1234", i);
            }
        });
    }
    for (std::thread &thread : threads) {
        thread.join();
    }
}
