// Calls that were recorded once and are issued repeatedly with the same arguments and memory.
//
// A graph has steps. The calls of a step are submitted together; they are of one communicator. A
// step begins when the recorded calls that it awaits have ended, so calls of several communicators,
// and sends and recvs, keep the order of the recorded program's waits.
//
// One thread at a time may run or start a graph, once is_done(). Any thread may wait.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "engine/communicator.h"

namespace hccl {

class Graph {
 public:
  struct Call {
    RequestPtr request;  // complete except for times; reused by each replay
    double timeout_s;    // counts from the start of its step
  };
  // Waits for `awaited`, and submits the calls from `first` to before `last`.
  struct Step {
    std::vector<size_t> awaited;  // numbers of earlier calls
    size_t engine;                // number of its communicator
    size_t first, last;
    bool blocks;  // the next step begins when all calls of this one have ended
  };
  using Engines = std::span<Communicator* const>;  // by number; the same ones until is_done()

  // The steps have all calls, in order.
  Graph(const std::vector<Call>& calls, std::vector<Step> steps);

  // Whether no call must end before another begins.
  bool is_one_batch() const;
  // Runs all calls to their end. Throws CommunicatorFailed; later steps are then not submitted, and
  // calls of other communicators may still run.
  void run(Engines engines, const Interrupt& interrupt);
  // Submits all calls, which must be one batch. Throws CommunicatorFailed, as above.
  void start(Engines engines);
  // Waits until all have ended or `deadline`; false if that passed first. Throws
  // CommunicatorFailed. Once is_done() it needs no engines.
  bool wait(Engines engines, Deadline deadline, const Interrupt& interrupt);
  bool is_done() const;
  // The number of the first failed or running call; the number of calls if there is none.
  size_t first_failed() const;
  size_t first_open() const;
  size_t size() const { return requests_.size(); }

 private:
  // The recorded fields of a request that the engine changes.
  struct Recorded {
    double timeout_s;
    int peer;
    uint64_t fingerprint;
    size_t engine;
  };

  std::span<const RequestPtr> prepare(const Step& step);
  void check(Engines engines);
  void run_steps(Engines engines, const Interrupt& interrupt);
  void submit(const Step& step, Engines engines, const Interrupt* interrupt);

  std::vector<RequestPtr> requests_;
  std::vector<Recorded> recorded_;  // by request
  const std::vector<Step> steps_;
};

}  // namespace hccl
