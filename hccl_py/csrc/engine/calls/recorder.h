// The flight recorder: the last collectives, sends and receives of one communicator.
//
// Only the driver writes, so nothing is locked, and nothing is allocated after the start. Any
// thread may read. Each record carries a version, which is odd while the record is written. A
// reader loads the version, copies the record, and keeps the copy if the version is still the same
// even number. All words are atomic. Stores of words (release) stay behind the store of the odd
// version; loads of words (acquire) stay before the second load of the version. So a reader that
// has seen one word of a later call also sees its odd version.
#pragma once

#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <optional>
#include <vector>

#include "engine/calls/request.h"
#include "engine/calls/stragglers.h"

namespace hccl {

enum class CallState : uint8_t { submitted = 0, started = 1, completed = 2, failed = 3 };

// One call, as read. Times are nanoseconds of the steady clock; 0: not reached.
struct CallRecord {
  uint64_t id = 0;  // counts the calls of this communicator, from 0
  RequestKind kind = RequestKind::collective;
  CallState state = CallState::submitted;
  bool rendezvous = false;    // messages were read or written in registered memory
  uint64_t sequence = 0;      // collective
  uint64_t fingerprint = 0;   // collective; of a transfer the tag
  int peer = any_rank;        // transfer
  uint64_t bytes_in = 0;      // this rank's input
  uint64_t bytes_out = 0;     // its output
  uint64_t submitted_ns = 0;  // by the caller
  uint64_t started_ns = 0;    // collective: its turn; transfer: the peer had called
  uint64_t ended_ns = 0;
  Waiting waiting;  // collective
};

class Recorder {
 public:
  static constexpr uint64_t capacity = 4096;

  Recorder();

  // ---- the driver

  // Opens a call. Writes its number into `request.record`.
  void open(Request& request);
  // Its turn was its submission, or `earliest_ns` if that is later.
  void start(Request& request, uint64_t earliest_ns);
  void end(const Request& request, CallState how, uint64_t ended_ns, const Waiting& waiting = {},
           bool is_rendezvous = false);
  // Marks all unfinished calls as failed.
  void fail_open();

  // ---- anyone

  // The recorded calls, oldest first.
  std::vector<CallRecord> records() const;

 private:
  // The words of a record. Plain words from calloc(), without pages until they are written; each
  // access of another thread is atomic, as described above.
  enum Word {
    version,
    id,
    kind,
    state,
    sequence,
    fingerprint,
    peer,
    bytes_in,
    bytes_out,
    submitted,
    started,
    ended,
    rendezvous,
    waited,
    waited_until,
    straggler,
    num_words
  };

  uint64_t* words_of(uint64_t number) const { return words_.get() + number % capacity * num_words; }
  std::optional<CallRecord> read(uint64_t number) const;

  const std::unique_ptr<uint64_t, decltype(&std::free)> words_;
  std::atomic<uint64_t> num_opened_{0};  // release: read() of lower numbers finds a version
};

}  // namespace hccl
