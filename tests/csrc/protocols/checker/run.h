// The one execution that the checker runs: its shared memory, threads and steps.
//
//   sites.cc         accesses of the product by name
//   cells.cc         plain memory and its races; the locations of atomics
//   threads.cc       threads as fibers, and what their next step does
//   explore.cc       executions, one after the other
//   instrumented.cc  what compiled code calls: ThreadSanitizer's functions, allocations, system
//   calls
//
// These files are compiled without -fsanitize=thread.
#pragma once

#include <setjmp.h>
#include <ucontext.h>

#include <array>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "checker.h"
#include "schedule.h"

namespace hccl::check {

inline bool in_execution = false;  // its own allocations come from an arena

struct Outside {  // the checker's own allocations within an execution
  bool before = std::exchange(in_execution, false);
  ~Outside() { in_execution = before; }
};

struct Cell {
  uint64_t execution = 0;
  int location = -1;
  bool by_kernel = false;  // the last plain write
  int8_t writer = -1;
  uint32_t written = 0;
  Clock reads, atomic_reads, atomic_writes;
};

struct Region {
  uintptr_t begin, end;
  size_t cell_bytes;
  bool is_lasting;
  List<Cell> cells;
  List<uint32_t> dirty;  // cells written in this execution
};

struct Event {
  uint64_t count = 0;
  int location = -1;
};

// A mutex or condition variable of shared memory. A mutex is an event that its owner has taken.
struct Lock {
  uintptr_t address;
  int event;
  List<int> waiters;  // events
};

constexpr int first_event = 1 << 20;  // the descriptor of event 0

struct Fiber {
  std::unique_ptr<std::byte[]> stack;
  ucontext_t context;
  jmp_buf state;
  bool is_started = false, is_done = false;
  uint64_t result = 0;
  List<std::pair<size_t, uint32_t>> loaded;  // in this turn: location and index
};

struct Step {
  int thread;
  Access access;
  uint64_t result;
};

struct Run {
  const Program* program = nullptr;
  Schedule* schedule = nullptr;
  Memory memory;
  std::deque<Region> regions;
  std::deque<Location> locations;
  size_t num_locations = 0;
  List<Event> events;
  std::deque<Lock, Malloc<Lock>> locks;
  uint64_t execution = 0;
  std::array<Fiber, max_threads> fibers;
  std::array<Access, max_threads> pending;
  int current = -1;  // the thread that runs; -1: none, accesses are no steps
  bool on_fiber = false;
  jmp_buf scheduler;
  std::string fault;
  std::vector<Step, Malloc<Step>> steps;

  std::unordered_map<uintptr_t, int> site_of;  // by return address
  struct Seen {
    uintptr_t at;
    int order;
    bool loads, stores;
    int weakened = -1;
    bool is_used = false;  // in this exploration
  };
  std::vector<Seen> sites;
  std::map<uintptr_t, std::string> names;
  std::map<std::string, bool> is_product;  // by name
};

inline Run run;

// ---- sites
int site_at(void* caller, int order, bool loads, bool stores);
void name_sites();

// ---- cells and locations
Region* region_of(uintptr_t address);
void note_access(uintptr_t address, size_t num_bytes, bool writes, bool by_kernel = false);
void note_atomic(uintptr_t address, int num_bytes, bool loads, bool stores);
std::string describe(uintptr_t address);
inline Location& location_at(size_t which) { return run.locations[which]; }
size_t location_of(uintptr_t address, int num_bytes);
void raw_store(uintptr_t address, int num_bytes, uint64_t value);

// ---- threads
inline Fiber& fiber_of(int thread) { return run.fibers[static_cast<size_t>(thread)]; }
void fail(const std::string& what);  // ends the execution by a fault
void resume(int thread);             // runs the thread to its next step, or its end
uint64_t step(Access access);        // the thread's next step; returns what it gives
bool is_enabled(int thread);
uint32_t choices_of(int thread);  // in how many ways the thread's next access may end
uint64_t perform(int thread, const Access& access, uint32_t choice);
uint64_t updated(const Access& access, uint64_t before);
Access simple(Kind kind, uint64_t value = 0);

// ---- executions
void begin_arena();

}  // namespace hccl::check
