// Programs of which it is known what their loads may see.
#include "cases.h"

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <set>
#include <string>

namespace hccl::check {

namespace {

constexpr auto none = std::memory_order_relaxed, acq = std::memory_order_acquire,
               rel = std::memory_order_release, all = std::memory_order_seq_cst;

std::atomic<int> x, y, z;
int data;
int seen[5];  // what the threads loaded; 9: nothing

using Threads = std::vector<std::function<void()>>;

std::set<std::string> seen_by(const Threads& threads, bool reduces, std::string& fault,
                              uint64_t& executions) {
  static std::set<std::string> found;
  found.clear();
  Program program;
  program.begin = [] { std::fill(seen, seen + 5, 9); };
  program.threads = threads;
  program.end = [] {
    std::string digits;
    for (int one : seen) digits += one == 9 ? "" : std::to_string(one);
    found.insert(digits);
  };
  Outcome outcome = explore(program, {.reduces = reduces});
  fault = outcome.fault;
  executions += outcome.executions;
  return found;
}

// `never`, `sometimes`: what the threads load, in the order of `seen`.
bool holds(const char* name, const Threads& threads, const std::set<std::string>& sometimes,
           const std::set<std::string>& never, const char* expected_fault = "") {
  std::string fault, reduced_fault;
  uint64_t executions = 0;
  std::set<std::string> reduced = seen_by(threads, true, reduced_fault, executions);
  std::set<std::string> full = seen_by(threads, false, fault, executions);
  bool is_right = fault.find(expected_fault) == 0 && reduced_fault.find(expected_fault) == 0 &&
                  fault.empty() == (*expected_fault == 0) && (!fault.empty() || reduced == full);
  for (const auto& one : sometimes) is_right &= full.contains(one);
  for (const auto& one : never) is_right &= !full.contains(one);
  if (is_right) return true;
  std::printf("litmus test %s: %s %s, reduced:", name, fault.c_str(), reduced_fault.c_str());
  for (const auto& one : reduced) std::printf(" %s", one.c_str());
  std::printf(", full:");
  for (const auto& one : full) std::printf(" %s", one.c_str());
  std::printf("\n");
  return false;
}

void keep(int which, int value) { seen[which] = value; }

Threads store_buffering(std::memory_order store, std::memory_order load, bool has_fences) {
  auto fence = [has_fences] {
    if (has_fences) std::atomic_thread_fence(all);
  };
  return {[=] {
            x.store(1, store);
            fence();
            keep(0, y.load(load));
          },
          [=] {
            y.store(1, store);
            fence();
            keep(1, x.load(load));
          }};
}

Threads message_passing(std::memory_order store, std::memory_order load) {
  return {[=] {
            x.store(1, none);
            y.store(1, store);
          },
          [=] {
            keep(0, y.load(load));
            keep(1, x.load(none));
          }};
}

Threads message_passing_by_fences(bool releases) {
  return {[=] {
            x.store(1, none);
            if (releases) std::atomic_thread_fence(rel);
            y.store(1, none);
          },
          [=] {
            keep(0, y.load(none));
            std::atomic_thread_fence(acq);
            keep(1, x.load(none));
          }};
}

Threads independent_reads(std::memory_order store, std::memory_order load) {
  return {[=] { x.store(1, store); }, [=] { y.store(1, store); },
          [=] {
            keep(0, x.load(load));
            keep(1, y.load(load));
          },
          [=] {
            keep(2, y.load(load));
            keep(3, x.load(load));
          }};
}

Threads plain_message(std::memory_order store, std::memory_order load) {
  return {[=] {
            data = 1;
            x.store(1, store);
          },
          [=] {
            if (x.load(load) == 1) keep(0, data);
          }};
}

// Acquires through an update of another thread, which continues the release sequence.
Threads release_sequence(std::memory_order second, bool is_update) {
  return {[] {
            data = 1;
            x.store(1, rel);
          },
          [=] {
            if (is_update) {
              x.fetch_add(2, second);
            } else if (x.load(none) == 1) {
              x.store(3, second);
            }
          },
          [] {
            if (x.load(acq) == 3) keep(0, data);
          }};
}

Threads spins() {
  return {[] {
            data = 1;
            x.store(1, none);
            x.store(2, rel);
            y.store(1, rel);
          },
          [] {
            while (x.load(acq) != 2) wait();
            keep(0, data);
            keep(1, y.load(none));
          },
          [] {
            while (y.load(acq) == 0) wait();
            keep(2, data);
          }};
}

Threads mixed_orders() {
  return {[] {
            x.store(1, all);
            keep(0, y.load(acq));
            z.store(1, rel);
          },
          [] {
            y.store(1, all);
            keep(1, x.load(all));
            keep(2, z.load(none));
          },
          [] {
            keep(3, z.load(acq));
            y.store(2, none);
            keep(4, x.load(all));
          }};
}

// The relaxed chain orders nothing: the last load may read the value before the first store.
Threads order_against_a_chain(std::memory_order link) {
  return {[=] {
            x.store(1, all);
            y.store(1, link);
          },
          [=] {
            keep(0, y.load(acq));
            keep(1, x.load(all));
          }};
}

Threads deadlock() {
  return {[] {
            x.store(1, none);
            while (y.load(acq) == 0) wait();
          },
          [] {
            if (x.load(acq) == 1) y.store(1, none);
          }};
}

Threads livelock() {
  return {[] {
    while (y.load(none) == 0) x.fetch_add(1, none);
  }};
}

}  // namespace

bool passes_litmus_tests() {
  for (const void* one : {&x, &y, &z}) share(one, sizeof x);
  share(&data, sizeof data);
  bool passes = true;
  passes &= holds("store buffering", store_buffering(all, all, false), {"01", "10", "11"}, {"00"});
  passes &= holds("store buffering, weak", store_buffering(rel, acq, false), {"00", "11"}, {});
  passes &= holds("store buffering, fences", store_buffering(none, none, true), {"11"}, {"00"});
  passes &= holds("message passing", message_passing(rel, acq), {"00", "01", "11"}, {"10"});
  passes &= holds("message passing, weak store", message_passing(none, acq), {"10"}, {});
  passes &= holds("message passing, weak load", message_passing(rel, none), {"10"}, {});
  passes &= holds("message passing, fences", message_passing_by_fences(true), {"11"}, {"10"});
  passes &= holds("message passing, one fence", message_passing_by_fences(false), {"10"}, {});
  passes &= holds("independent reads", independent_reads(all, all), {"1111"}, {"1010"});
  passes &= holds("independent reads, weak", independent_reads(rel, acq), {"1010"}, {});
  passes &= holds("a plain message", plain_message(rel, acq), {"1"}, {"0"});
  passes &= holds("a plain message, weak store", plain_message(none, acq), {}, {}, "a data race");
  passes &= holds("a plain message, weak load", plain_message(rel, none), {}, {}, "a data race");
  passes &= holds("a release sequence", release_sequence(none, true), {"1"}, {"0"});
  passes &= holds("no release sequence", release_sequence(none, false), {}, {}, "a data race");
  passes &= holds("spinning", spins(), {"101", "111"}, {});
  passes &= holds("mixed orders", mixed_orders(), {"00000", "21101"}, {});
  passes &= holds("a chain", order_against_a_chain(rel), {"11"}, {"10"});
  passes &= holds("a relaxed chain", order_against_a_chain(none), {"10", "11"}, {});
  passes &= holds("deadlock", deadlock(), {}, {}, "all threads wait");
  passes &= holds("livelock", livelock(), {}, {}, "the execution does not end");
  return passes;
}

}  // namespace hccl::check
