// Why a communicator or one request failed: one record from its observation to the raised error.
// The first failure is kept; nothing replaces it.
//
// A report is an observation of one rank. The ranks' coordinator makes one diagnosis of all
// reports, and hccl_py/diagnosis renders its text; no text is made here. Python reads these fields
// by the same names (bindings/reports.cc).
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "lanes/lane.h"

namespace hccl {

// The only definition, for Python as well. The numbers are sent between ranks: append only.
enum class Cause : uint8_t {
  none = 0,
  died = 1,  // the process ended, as its own node reports
  lost = 2,  // all connections to another node's rank closed; that node has not confirmed its end
  // Connections broke and cannot be replaced, or the process is alive without them.
  unreachable = 3,
  left = 4,  // said goodbye while others still wait for it
  timed_out = 5,
  mismatch = 6,
  uncaught_exception = 7,
  interrupted = 8,  // by a signal, half-way
  aborted = 9,
  closed = 10,  // this rank closed with running calls, or before this one
  internal_error = 11,
};

// The progress of a call. Steps and tiles count from 1; 0: not begun.
struct Stage {
  const char* activity = "";  // of the step: the name of its op
  int64_t step = 0;
  int64_t num_steps = 0;
  int64_t tile = 0;
  int64_t num_tiles = 0;
};

// A rank's progress in its calls, for its reports.
struct CallProgress {
  uint64_t submitted = 0;  // collectives; the last one's sequence number
  uint64_t finished = 0;   // of these, without error
  uint64_t sequence = 0;   // of the running one; 0: none
  uint64_t fingerprint = 0;
  double timeout_s = 0;   // of the running call
  Stage stage;            // of what runs
  size_t bytes_done = 0;  // of its data, estimated by completed ops
  size_t bytes_total = 0;
  std::vector<int> waiting_for;   // ranks that it waits for
  size_t num_transfers = 0;       // running sends and receives
  std::vector<int> out_of_reach;  // ranks of other nodes whose hosts do not answer
  std::vector<int> unlinked;      // ranks whose control connections broke in another way
};

struct Failure {
  Cause cause = Cause::none;
  int rank = -1;          // the culprit by this rank's view; -1: none
  uint64_t call = 0;      // fingerprint of this rank's call; 0: none was running
  uint64_t sequence = 0;  // its number; 0: none

  // mismatch
  uint64_t their_call = 0;                 // the call of `rank`; 0: the same, but sizes differ
  std::optional<uint64_t> sent_bytes;      // of the message that does not fit,
  std::optional<uint64_t> expected_bytes;  // and what its receiver expects
  bool sends = false;                      // one transfer: this rank is its sender

  // timed_out
  Stage stage;
  std::vector<int> waiting_for;
  bool half_done = false;  // one transfer: part of it had moved

  // timed_out, unreachable
  std::vector<PathTrouble> paths;

  // died, lost, unreachable
  bool process_lives = false;            // unreachable: though its connection closed
  std::optional<int> exit_code, signal;  // died; unset: unknown
  // The text of the operating system or the provider; left: the exception that the peer raised.
  std::string error;

  uint64_t last_sequence = 0;  // left: collectives that it had submitted
  bool goes_on = false;        // left: for a new communicator, which took this one's place
  std::string reason;  // aborted, uncaught_exception, internal_error: the text of the raised error

  // The coordinator's diagnosis, not parsed here; empty: this failure is this rank's own view.
  std::string diagnosis;
};

using FailurePtr = std::shared_ptr<const Failure>;

inline Failure observed(Cause cause, int rank) {
  Failure failure;
  failure.cause = cause;
  failure.rank = rank;
  return failure;
}

// Thrown to callers; bindings/reports.cc raises it in Python.
class CommunicatorFailed : public std::runtime_error {
 public:
  explicit CommunicatorFailed(FailurePtr its_failure)
      : std::runtime_error("the communicator failed"), failure(std::move(its_failure)) {}
  const FailurePtr failure;
};

}  // namespace hccl
