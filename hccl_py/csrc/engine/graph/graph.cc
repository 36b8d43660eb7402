#include "engine/graph/graph.h"

#include <algorithm>
#include <utility>

namespace hccl {

namespace {

// Ends requests that were not submitted; the engine fails the others.
void fail_all(std::span<const RequestPtr> requests, const FailurePtr& failure) {
  for (const RequestPtr& request : requests) request->fail(failure);
}

}  // namespace

Graph::Graph(const std::vector<Call>& calls, std::vector<Step> steps) : steps_(std::move(steps)) {
  for (const auto& [request, timeout_s] : calls) {
    request->finish();  // nothing is under way yet
    requests_.push_back(request);
    recorded_.push_back({timeout_s, request->peer, request->call.fingerprint, 0});
  }
  for (const Step& step : steps_) {
    for (size_t call = step.first; call < step.last; ++call) recorded_[call].engine = step.engine;
  }
}

bool Graph::is_one_batch() const {
  for (size_t i = 1; i < steps_.size(); ++i) {
    if (!steps_[i].awaited.empty() || steps_[i - 1].blocks) return false;
  }
  return true;
}

// Resets the requests of a step to the recorded state. No driver uses them: all were done
// (Request::finish releases, is_done() acquires), after which drivers only drop them.
std::span<const RequestPtr> Graph::prepare(const Step& step) {
  Deadline now = Clock::now();
  for (size_t call = step.first; call < step.last; ++call) {
    Request& request = *requests_[call];
    request.submitted = now;
    request.deadline = now + duration_of(recorded_[call].timeout_s);
    request.peer = recorded_[call].peer;
    request.call.fingerprint = recorded_[call].fingerprint;
    request.failure = nullptr;
    request.done.store(false, std::memory_order_relaxed);
  }
  return std::span(requests_).subspan(step.first, step.last - step.first);
}

// Before anything is sent, so that a failed communicator leaves the others unchanged.
void Graph::check(Engines engines) {
  for (const Step& step : steps_) {
    FailureState& failures = engines[step.engine]->failures();
    if (!failures.has_ended()) continue;
    fail_all(prepare(step), failures.failure());
    throw CommunicatorFailed(failures.failure());
  }
}

void Graph::run(Engines engines, const Interrupt& interrupt) {
  check(engines);
  try {
    run_steps(engines, interrupt);
    wait(engines, Deadline::max(), interrupt);
  } catch (const CommunicatorFailed&) {
    throw;
  } catch (...) {
    // As for a single interrupted call.
    for (size_t call = 0; call < requests_.size(); ++call) {
      if (!requests_[call]->is_done()) engines[recorded_[call].engine]->abort(Cause::interrupted);
    }
    throw;
  }
}

void Graph::run_steps(Engines engines, const Interrupt& interrupt) {
  for (const Step& step : steps_) {
    for (size_t call : step.awaited) {
      engines[recorded_[call].engine]->wait(requests_[call], Deadline::max(), interrupt);
    }
    // No later step could begin before the last one ends.
    bool blocks = step.blocks || &step == &steps_.back();
    submit(step, engines, blocks ? &interrupt : nullptr);
  }
}

// Waits for the calls if there is an `interrupt`.
void Graph::submit(const Step& step, Engines engines, const Interrupt* interrupt) {
  std::span<const RequestPtr> requests = prepare(step);
  Communicator& engine = *engines[step.engine];
  try {
    interrupt != nullptr ? engine.run(requests, *interrupt) : engine.start(requests);
  } catch (const CommunicatorFailed& failed) {
    fail_all(requests, failed.failure);
    throw;
  }
}

void Graph::start(Engines engines) {
  check(engines);
  for (const Step& step : steps_) submit(step, engines, nullptr);
}

bool Graph::wait(Engines engines, Deadline deadline, const Interrupt& interrupt) {
  for (size_t call = 0; call < requests_.size(); ++call) {
    const RequestPtr& request = requests_[call];
    if (request->is_done()) {
      if (request->failure) throw CommunicatorFailed(request->failure);
      continue;
    }
    if (!engines[recorded_[call].engine]->wait(request, deadline, interrupt)) return false;
  }
  return true;
}

bool Graph::is_done() const { return first_open() == size(); }

size_t Graph::first_failed() const {
  auto failed = [](const RequestPtr& request) { return request->is_done() && request->failure; };
  auto found = std::find_if(requests_.begin(), requests_.end(), failed);
  return static_cast<size_t>(found - requests_.begin());
}

size_t Graph::first_open() const {
  auto open = [](const RequestPtr& request) { return !request->is_done(); };
  auto found = std::find_if(requests_.begin(), requests_.end(), open);
  return static_cast<size_t>(found - requests_.begin());
}

}  // namespace hccl
