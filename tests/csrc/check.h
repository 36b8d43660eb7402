// The whole test framework: a condition that must hold, and what to say if not.
#pragma once

#include <cstdio>
#include <cstdlib>
#include <cstring>

#define CHECK(condition)                                                          \
  do {                                                                            \
    if (!(condition)) {                                                           \
      std::fprintf(stderr, "%s:%d: failed: %s\n", __FILE__, __LINE__, #condition); \
      std::abort();                                                               \
    }                                                                             \
  } while (false)

namespace hccl::test {

// An entry of the table that `run_tests` runs.
#define HCCL_TEST(name) {#name, name}

struct Test {
  const char* name;
  void (*run)();
};

// Runs all, or the one that the command line names.
template <size_t n>
void run_tests(const Test (&tests)[n], const char* only = nullptr) {
  for (const Test& test : tests) {
    if (only != nullptr && std::strcmp(only, test.name) != 0) continue;
    std::printf("%s\n", test.name);
    std::fflush(stdout);
    test.run();
  }
}

}  // namespace hccl::test
