// Executions, one after the other, until all have been explored.
#include <cstring>
#include <sstream>

#include "run.h"

namespace hccl::check {

namespace {

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
  begin_arena();
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
  run.locks.clear();
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

}  // namespace hccl::check
