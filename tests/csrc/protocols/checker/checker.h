// A stateless model checker for the protocols of shared memory, in the manner of CDSChecker.
//
// It runs the sources that ship, unchanged: the compiler compiles them with -fsanitize=thread, and
// instrumented.cc defines the functions that such code calls for each of its accesses. The policy
// of the atomics is the compiler's own, so no access escapes it, atomic or plain.
//
//   - explore() runs a program of two to four threads once per execution, each thread on a stack
//     of its own, and switches between them before each atomic access to shared memory.
//   - A load may read any store that C++20 lets it read, stale ones included (memory.h).
//   - A plain access that races with another one is a fault. So are a failed require(), an
//     exception, an execution that never ends, and threads that all wait: a lost wake-up.
//   - Executions that differ only in the order of independent accesses run once (schedule.h).
//
// What it cannot see stands in docs/internals/protocols.md.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <set>
#include <string>
#include <vector>

namespace hccl::check {

inline constexpr int max_threads = 4;

// Objects made in an execution are dropped without a destructor when it ends.
struct Program {
  std::function<void()> begin;  // makes the state of one execution; runs alone
  std::vector<std::function<void()>> threads;
  std::function<void()> end;  // runs alone after all threads; may be empty
};

struct Limits {
  uint64_t executions = UINT64_MAX;
  int steps = 4000;     // of one execution; more is a livelock
  bool reduces = true;  // false: every interleaving, to test the reduction
};

struct Outcome {
  uint64_t executions = 0;      // that ran to their end
  uint64_t pruned = 0;          // that were given up, because they only repeat others
  bool complete = false;        // whether there are no more
  std::string fault;            // of the last execution; empty: none
  std::string trace;            // what led to it
  std::set<std::string> sites;  // see below
};
Outcome explore(const Program& program, const Limits& limits = {});

// ---- for programs
// Declares memory that several threads use. Outside of executions: for good, and it is zero when
// one begins. In begin(): for this execution. Plain accesses are told apart by cells of that size.
void share(const void* address, size_t num_bytes, size_t cell_bytes = 4);
// This thread's turn moved nothing: waits until one of the values that it loaded since the last
// wait() or moved() changes, and sees that change. A spin loop is this under a fair scheduler.
void wait();
void moved();
// Ends the exploration with this fault unless it holds.
void require(bool condition, const char* what);
// Runs what makes objects that outlive the execution.
void lasting(const std::function<void()>& make);
// The descriptor of a modelled eventfd: write(), read() and poll() of it are modelled. Poll has no
// timeout, so a wake-up that only a timeout repairs is lost.
int new_event();
// Which of `num_choices` to take: all are explored.
int choose(int num_choices);

// ---- atomic accesses by their place in the source
// As compilers number memory orders.
enum Order : int { relaxed, consume, acquire, release, acq_rel, seq_cst };

struct Site {
  std::string name;  // file, line of code
  int order = 0;     // the strongest that an access used
  bool loads = false, stores = false;
  bool is_product = false;  // false: it is in a program of the checker
};
// Of the shared accesses of all programs explored so far.
std::vector<Site> sites();
// From now on accesses of this site use the weaker order; an empty name: none does.
void weaken(const std::string& name, int order);
const char* name_of_order(int order);

}  // namespace hccl::check
