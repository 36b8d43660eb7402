// The functions that code compiled with -fsanitize=thread calls, over memory.h and schedule.h; the
// threads; and the system calls of the protocols, replaced by the linker (--wrap).
//
// This file alone is compiled without -fsanitize=thread.
#include <poll.h>
#include <setjmp.h>
#include <sys/uio.h>
#include <ucontext.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <deque>
#include <exception>
#include <map>
#include <memory>
#include <new>
#include <sstream>
#include <unordered_map>
#include <utility>

#include "checker.h"
#include "schedule.h"

namespace hccl::check {

namespace {

// ---- memory of executions: never freed, and taken again at the same addresses by the next one
constexpr size_t arena_bytes = size_t{32} << 20;
std::byte* const arena = static_cast<std::byte*>(std::malloc(arena_bytes));
size_t arena_used = 0;
bool in_execution = false;  // its own allocations come from the arena

struct Outside {  // the checker's own allocations within an execution
  bool before = std::exchange(in_execution, false);
  ~Outside() { in_execution = before; }
};

// ---- shared memory
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

constexpr int first_event = 1 << 20;
constexpr size_t stack_bytes = 128 << 10;

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
} run;

// ---- sites

int site_at(void* caller, int order, bool loads, bool stores) {
  Outside outside;
  uintptr_t at = reinterpret_cast<uintptr_t>(caller) - 1;
  auto [found, is_new] = run.site_of.try_emplace(at, static_cast<int>(run.sites.size()));
  if (is_new) run.sites.push_back({at, order, loads, stores});
  run.sites[static_cast<size_t>(found->second)].is_used = true;
  return found->second;
}

std::string line_of(const std::string& path, int number) {
  std::string line;
  char buffer[512];
  if (FILE* file = std::fopen(path.c_str(), "r")) {
    while (number-- > 0 && std::fgets(buffer, sizeof buffer, file)) {
      if (number == 0) line = buffer;
    }
    std::fclose(file);
  }
  size_t first = line.find_first_not_of(" \t"), last = line.find_last_not_of(" \t\r\n");
  return first == std::string::npos ? "" : line.substr(first, last - first + 1);
}

// Each site is named by the innermost of its inlined frames that lies in the product.
void name_sites() {
  Outside outside;
  std::vector<uintptr_t> unnamed;
  for (const auto& site : run.sites) {
    if (run.names.contains(site.at)) continue;
    unnamed.push_back(site.at);
  }
  if (unnamed.empty()) return;
  // -a prints each address before its frames.
  char executable[4096]{};
  if (readlink("/proc/self/exe", executable, sizeof executable - 1) < 0) return;
  std::string command = "addr2line -a -i -e " + std::string(executable);
  for (uintptr_t at : unnamed) {
    char text[32];
    std::snprintf(text, sizeof text, " 0x%zx", at);
    command += text;
  }
  FILE* frames = ::popen(command.c_str(), "r");
  char buffer[1024];
  uintptr_t at = 0;
  while (frames && std::fgets(buffer, sizeof buffer, frames)) {
    std::string frame = buffer;
    if (frame.starts_with("0x")) {
      at = std::stoull(frame, nullptr, 16);
      continue;
    }
    size_t colon = frame.rfind(':');
    if (colon == std::string::npos || run.names.contains(at)) continue;
    if (frame.find("csrc/") == std::string::npos) continue;
    std::string path = frame.substr(0, colon);
    std::string text = line_of(path, std::atoi(frame.c_str() + colon + 1));
    std::string& name = run.names[at] = path.substr(path.rfind('/') + 1) + ": " + text;
    run.is_product[name] = path.find("tests/") == std::string::npos;
  }
  if (frames) ::pclose(frames);
  for (uintptr_t one : unnamed) run.names.try_emplace(one, "?");
}

// ---- the end of an execution by a fault

[[noreturn]] void leave_fiber();

void fail(const std::string& what) {
  if (run.fault.empty()) run.fault = what;
  if (run.on_fiber) leave_fiber();
}

// ---- cells

Region* region_of(uintptr_t address) {
  for (Region& region : run.regions) {
    if (address >= region.begin && address < region.end) return &region;
  }
  return nullptr;
}

Cell& cell_at(Region& region, size_t index) {
  Cell& cell = region.cells[index];
  if (cell.execution != run.execution) {
    cell = {};
    cell.execution = run.execution;
  }
  return cell;
}

void note_dirty(Region& region, Cell& cell, size_t index) {
  if (!region.is_lasting) return;
  bool is_first = cell.writer == -1;
  if (is_first) region.dirty.push_back(static_cast<uint32_t>(index));
  if (is_first) cell.writer = -2;
}

bool is_before(int thread, uint32_t time, const Clock& clock) { return time <= clock[thread]; }

[[maybe_unused]] std::string describe(uintptr_t address) {
  std::ostringstream text;
  for (size_t i = 0; i < run.regions.size(); ++i) {
    const Region& region = run.regions[i];
    if (address >= region.begin && address < region.end) {
      text << "shared memory " << i << " + " << (address - region.begin);
      return text.str();
    }
  }
  text << "address " << address;
  return text.str();
}

void race(const char* what, int other, uintptr_t address) {
  Outside outside;
  fail(std::string("a data race: thread ") + std::to_string(run.current) + what +
       std::to_string(other) + " at " + describe(address));
}

void check_against(const Clock& theirs, const char* what, uintptr_t address) {
  const Clock& mine = run.memory.view(run.current).clock;
  for (int other = 0; other < max_threads; ++other) {
    if (other != run.current && !is_before(other, theirs[other], mine)) {
      return race(what, other, address);
    }
  }
}

void note_access(uintptr_t address, size_t num_bytes, bool writes, bool by_kernel = false) {
  if (!in_execution || num_bytes == 0) return;
  Region* region = region_of(address);
  if (region == nullptr) return;
  size_t first = (address - region->begin) / region->cell_bytes;
  size_t last = (address + num_bytes - 1 - region->begin) / region->cell_bytes;
  for (size_t i = first; i <= last && i < region->cells.size(); ++i) {
    Cell& cell = cell_at(*region, i);
    if (writes) note_dirty(*region, cell, i);
    if (run.current < 0) continue;
    uintptr_t at = region->begin + i * region->cell_bytes;
    const Clock& mine = run.memory.view(run.current).clock;
    bool same_bytes = by_kernel && cell.by_kernel;  // both copy one payload; see joint_copy.h
    if (cell.writer >= 0 && cell.writer != run.current &&
        !is_before(cell.writer, cell.written, mine) && !(writes && same_bytes)) {
      race(writes ? " writes what is written by thread " : " reads what is written by thread ",
           cell.writer, at);
    }
    check_against(cell.atomic_writes, " touches what is stored by thread ", at);
    if (writes) {
      check_against(cell.reads, " writes what is read by thread ", at);
      check_against(cell.atomic_reads, " writes what is loaded by thread ", at);
      if (cell.location >= 0) {
        Outside outside;
        fail("a plain write to an atomic at " + describe(at));
      }
      cell.writer = static_cast<int8_t>(run.current);
      cell.written = mine[run.current];
      cell.by_kernel = by_kernel;
    } else {
      cell.reads[run.current] = mine[run.current];
    }
  }
}

void note_atomic(uintptr_t address, int num_bytes, bool loads, bool stores) {
  Region* region = region_of(address);
  size_t first = (address - region->begin) / region->cell_bytes;
  size_t last = (address + static_cast<size_t>(num_bytes) - 1 - region->begin) / region->cell_bytes;
  const Clock& mine = run.memory.view(run.current).clock;
  for (size_t i = first; i <= last; ++i) {
    Cell& cell = cell_at(*region, i);
    uintptr_t at = region->begin + i * region->cell_bytes;
    if (cell.writer >= 0 && cell.writer != run.current &&
        !is_before(cell.writer, cell.written, mine)) {
      race(" uses as an atomic what is written by thread ", cell.writer, at);
    }
    if (stores) {
      check_against(cell.reads, " stores to what is read by thread ", at);
      if (cell.writer < 0) note_dirty(*region, cell, i);
      cell.atomic_writes[run.current] = mine[run.current];
    }
    if (loads) cell.atomic_reads[run.current] = mine[run.current];
  }
}

// ---- locations

uint64_t raw_load(uintptr_t address, int num_bytes) {
  uint64_t value = 0;
  std::memcpy(&value, reinterpret_cast<void*>(address), static_cast<size_t>(num_bytes));
  return value;
}

void raw_store(uintptr_t address, int num_bytes, uint64_t value) {
  std::memcpy(reinterpret_cast<void*>(address), &value, static_cast<size_t>(num_bytes));
}

Location& location_at(size_t which) { return run.locations[which]; }

int make_location(uintptr_t address, int num_bytes) {
  Outside outside;
  if (run.num_locations == run.locations.size()) run.locations.emplace_back();
  Location& location = run.locations[run.num_locations];
  location.address = address;
  location.num_bytes = num_bytes;
  location.stores.clear();
  for (auto& seen : location.seen) seen.clear();
  location.stores.push_back({num_bytes ? raw_load(address, num_bytes) : 0, {}, 0, 0});
  return static_cast<int>(run.num_locations++);
}

size_t location_of(uintptr_t address, int num_bytes) {
  if (address < run.events.size()) {  // the address of an event is its number
    Event& event = run.events[address];
    if (event.location < 0) event.location = make_location(address, 0);
    return static_cast<size_t>(event.location);
  }
  Region* region = region_of(address);
  Cell& cell = cell_at(*region, (address - region->begin) / region->cell_bytes);
  if (cell.location < 0) cell.location = make_location(address, num_bytes);
  if (location_at(static_cast<size_t>(cell.location)).num_bytes != num_bytes) {
    fail("accesses of two sizes at " + describe(address));
  }
  return static_cast<size_t>(cell.location);
}

// ---- threads

Fiber& fiber_of(int thread) { return run.fibers[static_cast<size_t>(thread)]; }

void leave_fiber() {
  fiber_of(run.current).is_done = true;
  longjmp(run.scheduler, 1);
}

void run_fiber() {
  try {
    run.program->threads[static_cast<size_t>(run.current)]();
  } catch (const std::exception& error) {
    Outside outside;
    run.fault = std::string("an exception: ") + error.what();
  }
  leave_fiber();
}

// Runs the thread to its next step, or its end.
void resume(int thread) {
  run.current = thread;
  run.on_fiber = in_execution = true;
  Fiber& fiber = fiber_of(thread);
  if (setjmp(run.scheduler) == 0) {
    if (fiber.is_started) longjmp(fiber.state, 1);
    fiber.is_started = true;
    if (!fiber.stack) {
      Outside outside;
      fiber.stack = std::make_unique<std::byte[]>(stack_bytes);
    }
    getcontext(&fiber.context);
    fiber.context.uc_stack.ss_sp = fiber.stack.get();
    fiber.context.uc_stack.ss_size = stack_bytes;
    fiber.context.uc_link = nullptr;
    makecontext(&fiber.context, run_fiber, 0);
    setcontext(&fiber.context);
  }
  run.on_fiber = in_execution = false;
  run.current = -1;
}

uint64_t step(Access access) {
  Fiber& fiber = fiber_of(run.current);
  run.pending[static_cast<size_t>(run.current)] = std::move(access);
  if (setjmp(fiber.state) == 0) longjmp(run.scheduler, 1);
  return fiber.result;
}

uint64_t updated(const Access& access, uint64_t before) {
  switch (access.update) {
    case 'x': return access.value;
    case '+': return before + access.value;
    case '-': return before - access.value;
    case '&': return before & access.value;
    case '|': return before | access.value;
    case '^': return before ^ access.value;
    case '=': return access.value;
    default: std::abort();
  }
}

uint64_t masked(uint64_t value, int num_bytes) {
  return num_bytes == 8 || num_bytes == 0 ? value : value & ((uint64_t{1} << (8 * num_bytes)) - 1);
}

bool has_changed(const std::pair<size_t, uint32_t>& loaded) {
  return location_at(loaded.first).last() > loaded.second;
}

bool is_enabled(int thread) {
  const Access& access = run.pending[static_cast<size_t>(thread)];
  if (access.kind == Kind::await) return run.events[access.address].count > 0;
  if (access.kind != Kind::wait) return true;
  const auto& loaded = fiber_of(thread).loaded;
  return std::any_of(loaded.begin(), loaded.end(), has_changed);
}

// In how many ways the thread's next access may end.
uint32_t choices_of(int thread) {
  const Access& access = run.pending[static_cast<size_t>(thread)];
  if (access.kind == Kind::choose) return static_cast<uint32_t>(access.value);
  if (access.kind == Kind::load) {
    const Location& location = location_at(location_of(access.address, access.num_bytes));
    auto follows = [thread](size_t step) { return run.schedule->follows(thread, step); };
    return location.last() - run.memory.oldest(location, thread, access.order, follows) + 1;
  }
  if (access.kind != Kind::wait) return 1;
  const auto& loaded = fiber_of(thread).loaded;
  return static_cast<uint32_t>(std::count_if(loaded.begin(), loaded.end(), has_changed));
}

void note_loaded(int thread, size_t location, uint32_t index) {
  auto& loaded = fiber_of(thread).loaded;
  std::erase_if(loaded, [location](const auto& one) { return one.first == location; });
  loaded.push_back({location, index});
}

uint64_t update(int thread, const Access& access) {
  Memory& memory = run.memory;
  bool is_event = access.num_bytes == 0;
  if (!is_event) note_atomic(access.address, access.num_bytes, true, true);
  size_t which = location_of(access.address, access.num_bytes);
  Location& location = location_at(which);
  uint64_t before = memory.load(location, thread, access.order, location.last());
  if (access.update == '=' && before != access.expected) return before;
  uint64_t next = masked(updated(access, before), access.num_bytes);
  memory.store(location, thread, access.order, next, run.steps.size(), true);
  if (is_event) {
    run.events[access.address].count = next;
  } else {
    raw_store(access.address, access.num_bytes, next);
    note_loaded(thread, which, location.last());
  }
  return before;
}

uint64_t perform(int thread, const Access& access, uint32_t choice) {
  Memory& memory = run.memory;
  switch (access.kind) {
    case Kind::load: {
      size_t which = location_of(access.address, access.num_bytes);
      uint32_t index = location_at(which).last() - choice;
      uint64_t value = memory.load(location_at(which), thread, access.order, index);
      note_loaded(thread, which, index);
      note_atomic(access.address, access.num_bytes, true, false);
      return value;
    }
    case Kind::store: {
      Location& location = location_at(location_of(access.address, access.num_bytes));
      note_atomic(access.address, access.num_bytes, false, true);
      memory.store(location, thread, access.order, access.value, run.steps.size());
      raw_store(access.address, access.num_bytes, access.value);
      return 0;
    }
    case Kind::update: return update(thread, access);
    case Kind::await: {
      Location& location = location_at(location_of(access.address, 0));
      return memory.load(location, thread, acquire, location.last());
    }
    case Kind::wait:
      memory.tick(thread);
      for (const auto& loaded : fiber_of(thread).loaded) {
        if (!has_changed(loaded) || choice-- != 0) continue;
        memory.see(location_at(loaded.first), thread, loaded.second + 1);
      }
      fiber_of(thread).loaded.clear();
      return 0;
    case Kind::fence: memory.fence(thread, access.order); return 0;
    case Kind::choose: return choice;
  }
  std::abort();
}

// ---- executions

const char* name_of(Kind kind) {
  constexpr const char* names[] = {"load", "store", "update", "fence", "wait", "await", "choose"};
  return names[static_cast<size_t>(kind)];
}

std::string trace() {
  name_sites();
  std::ostringstream text;
  for (const Step& step : run.steps) {
    const Access& access = step.access;
    text << "  thread " << step.thread << ": " << name_of(access.kind);
    if (access.kind == Kind::store) text << " " << access.value;
    if (access.kind == Kind::load || access.kind == Kind::update) text << " sees " << step.result;
    if (access.site >= 0) {
      text << " (" << name_of_order(access.order) << ") at " << describe(access.address) << ": "
           << run.names[run.sites[static_cast<size_t>(access.site)].at];
    }
    text << "\n";
  }
  return text.str();
}

void begin_execution() {
  ++run.execution;
  arena_used = 0;
  run.num_locations = 0;
  run.steps.clear();
  run.fault.clear();
  while (!run.regions.empty() && !run.regions.back().is_lasting) run.regions.pop_back();
  for (Region& region : run.regions) {
    for (uint32_t cell : region.dirty) {
      auto* at = reinterpret_cast<std::byte*>(region.begin + cell * region.cell_bytes);
      std::memset(at, 0, region.cell_bytes);
    }
    region.dirty.clear();
  }
  run.events.clear();
  run.memory.reset(static_cast<int>(run.program->threads.size()));
  for (Fiber& fiber : run.fibers) {
    fiber.is_started = fiber.is_done = false;
    fiber.loaded.clear();
  }
  run.schedule->begin();
}

// The rest of an execution that has begun. False: it was given up.
bool run_threads(const Limits& limits) {
  int num_threads = static_cast<int>(run.program->threads.size());
  while (run.fault.empty()) {
    unsigned enabled = 0, alive = 0;
    for (int thread = 0; thread < num_threads; ++thread) {
      if (fiber_of(thread).is_done) continue;
      alive |= 1u << thread;
      if (is_enabled(thread)) enabled |= 1u << thread;
    }
    if (alive == 0) {
      if (run.program->end) run.program->end();
      break;
    }
    if (enabled == 0) {
      run.fault = "all threads wait: a deadlock, or a lost wake-up";
      break;
    }
    if (run.steps.size() >= static_cast<size_t>(limits.steps)) {
      run.fault = "the execution does not end: a livelock";
      break;
    }
    bool is_new = !run.schedule->replays();
    Node* node = run.schedule->next(enabled, run.pending);
    if (node == nullptr) return false;
    int thread = node->thread;
    Access access = run.pending[static_cast<size_t>(thread)];
    uint32_t num_choices = choices_of(thread);
    if (!is_new && node->num_choices > 1 && node->num_choices != num_choices) {
      run.fault = "the program is not deterministic";
      break;
    }
    node->num_choices = num_choices;
    uint32_t choice = node->choice;
    run.schedule->executed(access);
    run.current = thread;
    uint64_t result = perform(thread, access, choice);
    run.steps.push_back({thread, std::move(access), result});
    fiber_of(thread).result = result;
    if (run.fault.empty()) resume(thread);
  }
  return true;
}

bool execute(const Limits& limits) {
  begin_execution();
  in_execution = true;
  run.program->begin();
  for (size_t thread = 0; thread < run.program->threads.size(); ++thread) {
    resume(static_cast<int>(thread));
  }
  in_execution = false;
  return run_threads(limits);
}

bool is_step(const volatile void* address) {
  return run.on_fiber && region_of(reinterpret_cast<uintptr_t>(address)) != nullptr;
}

Access access_to(const volatile void* address, int num_bytes, Kind kind, int order, void* caller) {
  Access access;
  access.kind = kind;
  access.address = reinterpret_cast<uintptr_t>(address);
  access.num_bytes = num_bytes;
  access.site = site_at(caller, order, kind != Kind::store, kind != Kind::load);
  int weakened = run.sites[static_cast<size_t>(access.site)].weakened;
  access.order = weakened >= 0 ? weakened : order;
  return access;
}

template <class T>
T load(const volatile T* address, int order, void* caller) {
  if (!is_step(address)) return __atomic_load_n(address, __ATOMIC_SEQ_CST);
  return static_cast<T>(step(access_to(address, sizeof(T), Kind::load, order, caller)));
}

template <class T>
void store(volatile T* address, T value, int order, void* caller) {
  if (!is_step(address)) {
    note_access(reinterpret_cast<uintptr_t>(address), sizeof(T), true);
    return __atomic_store_n(address, value, __ATOMIC_SEQ_CST);
  }
  Access access = access_to(address, sizeof(T), Kind::store, order, caller);
  access.value = value;
  step(std::move(access));
}

template <class T>
T update(volatile T* address, T value, T expected, int how, int order, void* caller) {
  Access access;
  if (!is_step(address)) {
    T before = *address;
    note_access(reinterpret_cast<uintptr_t>(address), sizeof(T), true);
    access.value = value;
    access.update = how;
    if (how != '=' || before == expected) *address = static_cast<T>(updated(access, before));
    return before;
  }
  access = access_to(address, sizeof(T), Kind::update, order, caller);
  access.value = value;
  access.expected = expected;
  access.update = how;
  return static_cast<T>(step(std::move(access)));
}

Access simple(Kind kind, uint64_t value = 0) {
  Access access;
  access.kind = kind;
  access.value = value;
  return access;
}

// Of a modelled descriptor: the number of its event, or -1.
int event_of(int descriptor) {
  int event = descriptor - first_event;
  return event >= 0 && event < static_cast<int>(run.events.size()) ? event : -1;
}

uint64_t use_event(int event, Kind kind, int how, uint64_t value) {
  if (!run.on_fiber) {
    uint64_t& count = run.events[static_cast<size_t>(event)].count;
    uint64_t before = count;
    count = how == '+' ? count + value : value;
    return before;
  }
  Access access = simple(kind, value);
  access.address = static_cast<uintptr_t>(event);
  access.order = acq_rel;
  access.update = how;
  return step(std::move(access));
}

}  // namespace

Outcome explore(const Program& program, const Limits& limits) {
  Schedule schedule(limits.reduces);
  run.program = &program;
  run.schedule = &schedule;
  for (auto& site : run.sites) site.is_used = false;
  Outcome outcome;
  do {
    ++(execute(limits) ? outcome.executions : outcome.pruned);
    if (!run.fault.empty()) break;
    outcome.complete = !schedule.backtrack();
  } while (!outcome.complete && outcome.executions + outcome.pruned < limits.executions);
  outcome.fault = run.fault;
  name_sites();
  for (const auto& site : run.sites) {
    if (site.is_used) outcome.sites.insert(run.names[site.at]);
  }
  if (!run.fault.empty()) outcome.trace = trace();
  return outcome;
}

void share(const void* address, size_t num_bytes, size_t cell_bytes) {
  bool is_lasting = !in_execution;
  Outside outside;
  auto begin = reinterpret_cast<uintptr_t>(address);
  if (begin % cell_bytes != 0) std::abort();
  Region region{begin, begin + num_bytes, cell_bytes, is_lasting, {}, {}};
  region.cells.resize((num_bytes + cell_bytes - 1) / cell_bytes);
  run.regions.push_back(std::move(region));
}

void wait() {
  Access access = simple(Kind::wait);
  for (const auto& [which, index] : fiber_of(run.current).loaded) {
    Outside outside;
    access.watched.push_back(location_at(which).address);
  }
  step(std::move(access));
}

void moved() { fiber_of(run.current).loaded.clear(); }

void require(bool condition, const char* what) {
  if (condition) return;
  Outside outside;
  fail(what);
}

void lasting(const std::function<void()>& make) {
  Outside outside;
  make();
}

int new_event() {
  Outside outside;
  run.events.push_back({});
  return first_event + static_cast<int>(run.events.size()) - 1;
}

int choose(int num_choices) {
  return static_cast<int>(step(simple(Kind::choose, static_cast<uint64_t>(num_choices))));
}

std::vector<Site> sites() {
  name_sites();
  std::map<std::string, Site> found;
  for (const auto& seen : run.sites) {
    Site& site = found.try_emplace(run.names[seen.at], Site{}).first->second;
    site.order = std::max(site.order, seen.order);
    site.loads |= seen.loads;
    site.stores |= seen.stores;
  }
  std::vector<Site> all;
  for (auto& [name, site] : found) {
    site.name = name;
    site.is_product = run.is_product[name];
    all.push_back(site);
  }
  return all;
}

void weaken(const std::string& name, int order) {
  name_sites();
  for (auto& site : run.sites) site.weakened = run.names[site.at] == name ? order : -1;
}

const char* name_of_order(int order) {
  constexpr const char* names[] = {"relaxed", "consume", "acquire",
                                   "release", "acq_rel", "seq_cst"};
  return names[order];
}

}  // namespace hccl::check

using namespace hccl::check;

// ---- the allocations of an execution

void* operator new(size_t num_bytes) {
  if (!in_execution) {
    if (void* memory = std::malloc(num_bytes)) return memory;
    throw std::bad_alloc();
  }
  arena_used = (arena_used + 63) / 64 * 64;
  if (arena_used + num_bytes > arena_bytes) std::abort();
  void* memory = arena + arena_used;
  arena_used += num_bytes;
  return memory;
}
void* operator new(size_t num_bytes, std::align_val_t alignment) {
  if (in_execution && static_cast<size_t>(alignment) <= 64) return operator new(num_bytes);
  if (in_execution) std::abort();
  return std::aligned_alloc(static_cast<size_t>(alignment), num_bytes);
}
void operator delete(void* memory) noexcept {
  auto* at = static_cast<std::byte*>(memory);
  if (at < arena || at >= arena + arena_bytes) std::free(memory);
}
void operator delete(void* memory, size_t) noexcept { operator delete(memory); }
void operator delete(void* memory, std::align_val_t) noexcept { operator delete(memory); }
void operator delete(void* memory, size_t, std::align_val_t) noexcept { operator delete(memory); }

// ---- what instrumented code calls

#define CALLER __builtin_return_address(0)
#define ADDRESS(pointer) reinterpret_cast<uintptr_t>(pointer)

extern "C" {

void __tsan_init() {}
void __tsan_func_entry(void*) {}
void __tsan_func_exit() {}
void __tsan_vptr_update(void**, void*) {}
void __tsan_vptr_read(void**) {}
void __tsan_read_range(void* at, size_t size) { note_access(ADDRESS(at), size, false); }
void __tsan_write_range(void* at, size_t size) { note_access(ADDRESS(at), size, true); }

#define PLAIN(size)                                                              \
  void __tsan_read##size(void* at) { note_access(ADDRESS(at), size, false); }    \
  void __tsan_write##size(void* at) { note_access(ADDRESS(at), size, true); }    \
  void __tsan_unaligned_read##size(void* at) { __tsan_read##size(at); }          \
  void __tsan_unaligned_write##size(void* at) { __tsan_write##size(at); }        \
  void __tsan_volatile_read##size(void* at) { __tsan_read##size(at); }           \
  void __tsan_volatile_write##size(void* at) { __tsan_write##size(at); }         \
  void __tsan_unaligned_volatile_read##size(void* at) { __tsan_read##size(at); } \
  void __tsan_unaligned_volatile_write##size(void* at) { __tsan_write##size(at); }
PLAIN(1)
PLAIN(2)
PLAIN(4)
PLAIN(8)
PLAIN(16)

#define UPDATE(bits, name, how)                                                                  \
  uint##bits##_t __tsan_atomic##bits##_##name(volatile uint##bits##_t* at, uint##bits##_t value, \
                                              int order) {                                       \
    return update<uint##bits##_t>(at, value, 0, how, order, CALLER);                             \
  }
#define ATOMIC(bits)                                                                               \
  uint##bits##_t __tsan_atomic##bits##_load(const volatile uint##bits##_t* at, int order) {        \
    return load(at, order, CALLER);                                                                \
  }                                                                                                \
  void __tsan_atomic##bits##_store(volatile uint##bits##_t* at, uint##bits##_t value, int order) { \
    store(at, value, order, CALLER);                                                               \
  }                                                                                                \
  UPDATE(bits, exchange, 'x')                                                                      \
  UPDATE(bits, fetch_add, '+')                                                                     \
  UPDATE(bits, fetch_sub, '-')                                                                     \
  UPDATE(bits, fetch_and, '&')                                                                     \
  UPDATE(bits, fetch_or, '|')                                                                      \
  UPDATE(bits, fetch_xor, '^')                                                                     \
  uint##bits##_t __tsan_atomic##bits##_compare_exchange_val(                                       \
      volatile uint##bits##_t* at, uint##bits##_t expected, uint##bits##_t value, int order,       \
      int) {                                                                                       \
    return update(at, value, expected, '=', order, CALLER);                                        \
  }                                                                                                \
  int __tsan_atomic##bits##_compare_exchange_strong(volatile uint##bits##_t* at,                   \
                                                    uint##bits##_t* expected,                      \
                                                    uint##bits##_t value, int order, int) {        \
    uint##bits##_t before = update(at, value, *expected, '=', order, CALLER);                      \
    return before == std::exchange(*expected, before);                                             \
  }                                                                                                \
  int __tsan_atomic##bits##_compare_exchange_weak(volatile uint##bits##_t* at,                     \
                                                  uint##bits##_t* expected, uint##bits##_t value,  \
                                                  int order, int) {                                \
    uint##bits##_t before = update(at, value, *expected, '=', order, CALLER);                      \
    return before == std::exchange(*expected, before);                                             \
  }
ATOMIC(8)
ATOMIC(16)
ATOMIC(32)
ATOMIC(64)

void __tsan_atomic_thread_fence(int order) {
  if (!run.on_fiber) return;
  Access access = simple(Kind::fence);
  access.site = site_at(CALLER, order, false, false);
  int weakened = run.sites[static_cast<size_t>(access.site)].weakened;
  access.order = weakened >= 0 ? weakened : order;
  step(std::move(access));
}
void __tsan_atomic_signal_fence(int) {}

// ---- what the linker sends here (--wrap)

void* __real_memcpy(void*, const void*, size_t);
void* __real_memmove(void*, const void*, size_t);
void* __real_memset(void*, int, size_t);
ssize_t __real_write(int, const void*, size_t);
ssize_t __real_read(int, void*, size_t);
int __real_poll(pollfd*, nfds_t, int);
int __real_close(int);

void* __wrap_memcpy(void* to, const void* from, size_t size) {
  note_access(ADDRESS(from), size, false);
  note_access(ADDRESS(to), size, true);
  return __real_memcpy(to, from, size);
}
void* __wrap_memmove(void* to, const void* from, size_t size) {
  note_access(ADDRESS(from), size, false);
  note_access(ADDRESS(to), size, true);
  return __real_memmove(to, from, size);
}
void* __wrap_memset(void* to, int value, size_t size) {
  note_access(ADDRESS(to), size, true);
  return __real_memset(to, value, size);
}

ssize_t __wrap_write(int descriptor, const void* from, size_t size) {
  int event = event_of(descriptor);
  if (event < 0) return __real_write(descriptor, from, size);
  use_event(event, Kind::update, '+', *static_cast<const uint64_t*>(from));
  return static_cast<ssize_t>(size);
}
ssize_t __wrap_read(int descriptor, void* to, size_t size) {
  int event = event_of(descriptor);
  if (event < 0) return __real_read(descriptor, to, size);
  *static_cast<uint64_t*>(to) = use_event(event, Kind::update, 'x', 0);
  return static_cast<ssize_t>(size);
}
int __wrap_poll(pollfd* watched, nfds_t count, int timeout_ms) {
  int event = count == 1 ? event_of(watched->fd) : -1;
  if (event < 0) return __real_poll(watched, count, timeout_ms);
  use_event(event, Kind::await, 0, 0);
  watched->revents = POLLIN;
  return 1;
}
int __wrap_close(int descriptor) {
  return descriptor >= first_event ? 0 : __real_close(descriptor);
}

ssize_t __wrap_process_vm_readv(pid_t, const iovec* mine, unsigned long, const iovec* theirs,
                                unsigned long, unsigned long) {
  note_access(ADDRESS(theirs->iov_base), mine->iov_len, false);
  note_access(ADDRESS(mine->iov_base), mine->iov_len, true, true);
  __real_memcpy(mine->iov_base, theirs->iov_base, mine->iov_len);
  return static_cast<ssize_t>(mine->iov_len);
}
ssize_t __wrap_process_vm_writev(pid_t, const iovec* mine, unsigned long, const iovec* theirs,
                                 unsigned long, unsigned long) {
  note_access(ADDRESS(mine->iov_base), mine->iov_len, false);
  note_access(ADDRESS(theirs->iov_base), mine->iov_len, true, true);
  __real_memcpy(theirs->iov_base, mine->iov_base, mine->iov_len);
  return static_cast<ssize_t>(mine->iov_len);
}
}
