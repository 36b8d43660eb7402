// The whole test framework: a condition that must hold, and tests that the shared `main` runs.
#pragma once

#include <cstdio>
#include <cstdlib>
#include <vector>

// What follows the condition, as for printf, says more.
#define CHECK(condition, ...)                                                      \
  do {                                                                             \
    if (!(condition)) {                                                            \
      std::fprintf(stderr, "%s:%d: failed: %s\n", __FILE__, __LINE__, #condition); \
      __VA_OPT__(std::fprintf(stderr, __VA_ARGS__);)                               \
      std::abort();                                                                \
    }                                                                              \
  } while (false)

// Begins the definition of a test: HCCL_TEST(name) { ... }
#define HCCL_TEST(name)                                          \
  void name();                                                   \
  const ::hccl::test::Registered registered_##name{#name, name}; \
  void name()

namespace hccl::test {

struct Test {
  const char* name;
  void (*run)();
};

// The program's tests in the order of their definitions.
inline std::vector<Test>& tests() {
  static std::vector<Test> defined;
  return defined;
}

struct Registered {
  Registered(const char* name, void (*run)()) { tests().push_back({name, run}); }
};

template <class Error, typename Action>
bool throws(Action action) {
  try {
    action();
  } catch (const Error&) {
    return true;
  }
  return false;
}

}  // namespace hccl::test
