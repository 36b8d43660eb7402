// Threads as fibers, each of which stops before its next step; and what a step does.
#include <algorithm>
#include <exception>

#include "run.h"

namespace hccl::check {

namespace {

constexpr size_t stack_bytes = 128 << 10;

[[noreturn]] void leave_fiber() {
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

uint64_t masked(uint64_t value, int num_bytes) {
  return num_bytes == 8 || num_bytes == 0 ? value : value & ((uint64_t{1} << (8 * num_bytes)) - 1);
}

bool has_changed(const std::pair<size_t, uint32_t>& loaded) {
  return location_at(loaded.first).last() > loaded.second;
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

}  // namespace

void fail(const std::string& what) {
  if (run.fault.empty()) run.fault = what;
  if (run.on_fiber) leave_fiber();
}

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

bool is_enabled(int thread) {
  const Access& access = run.pending[static_cast<size_t>(thread)];
  if (access.kind == Kind::await) return run.events[access.address].count > 0;
  if (access.kind != Kind::wait) return true;
  const auto& loaded = fiber_of(thread).loaded;
  return std::any_of(loaded.begin(), loaded.end(), has_changed);
}

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

Access simple(Kind kind, uint64_t value) {
  Access access;
  access.kind = kind;
  access.value = value;
  return access;
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

}  // namespace hccl::check
