// One ordered, reliable stream of messages between two ranks: the interface of every provider.
//
// Messages arrive once, whole and in the order posted. A lane belongs to one communicator (or one
// QueuePair, see verbs.h) and is touched only by the thread that drives it.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <exception>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "base/statistics.h"
#include "progress/sleep.h"

namespace hccl {

// How a large payload travels inside a node: through a slot, or it stays in place, and the kernel
// copies it once.
enum class CopyMode : uint8_t { cached, single };

// Precedes every payload. Providers read `length`; the rest belongs to the engine.
struct Header {
  uint64_t fingerprint = 0;  // collectives: the call; point-to-point: the tag
  uint64_t id = 0;  // collectives: how long stragglers delayed the sender, see stragglers.h
  uint64_t size : 48 = 0;
  // Collectives, of an average: which parts of the payload were scaled down, see collective.h.
  uint64_t scaled : 16 = 0;
  // Payload bytes: at most slot_bytes of the communicator, or max_long_bytes between lanes that
  // take long messages.
  uint32_t length = 0;
  uint16_t kind = 0;  // collectives: how the payload may travel, see hccl_py/plan/rendezvous.py
  uint8_t is_only_moved : 1 = 0;  // collectives: no rank reduces it
  uint8_t sender_waits : 1 = 0;   // the sender only waits until this is received
  // Collectives: the `kind`-th next message of the peer may be written to the source.
  uint8_t wants_reply : 1 = 0;
  CopyMode copy_mode = CopyMode::cached;
};
static_assert(sizeof(Header) == 32);

// The most bytes of a long message, which is received and not lent (plan/tiles.py has the same
// number).
inline constexpr size_t max_long_bytes = 1 << 20;

// A path of a lane that is down, or on which the peer does not answer.
struct PathTrouble {
  int rank = 0;  // the peer
  std::string name;
  bool up = false;  // up: unanswered for `seconds`; else down for as long
  double seconds = 0;
  std::string reason;  // why it is down, in the operating system's words
};

// The lane is gone.
class LaneError : public std::runtime_error {
 public:
  LaneError(int peer, const std::string& what) : std::runtime_error(what), peer_(peer) {}
  int peer() const { return peer_; }

 private:
  int peer_;
};

// A signal handler raised inside a lane's code; the lane itself is intact. Only a Python lane,
// whose code can run handlers, throws it.
class LaneInterrupted : public std::exception {
 public:
  explicit LaneInterrupted(std::exception_ptr its_cause) : cause(std::move(its_cause)) {}
  const char* what() const noexcept override { return "a signal handler interrupted a lane"; }

  const std::exception_ptr cause;
};

class Lane {
 public:
  Lane(int peer, size_t slot_bytes, Statistics& statistics)
      : slot_bytes_(slot_bytes),
        max_message_bytes_(slot_bytes),
        statistics_(statistics),
        peer_(peer) {}
  virtual ~Lane() = default;
  Lane(const Lane&) = delete;
  Lane& operator=(const Lane&) = delete;

  int peer() const { return peer_; }
  // Of a message that is received and not lent.
  size_t max_message_bytes() const { return max_message_bytes_; }

  // Posts a message; never blocks. The payload is borrowed until completed() reaches the number
  // returned: 1 for the lane's first message, then counting up. Throws LaneError.
  virtual uint64_t post_send(const Header& header, const std::byte* payload) = 0;
  // Sends as much as the lane accepts. True if anything moved. Throws LaneError.
  virtual bool flush() = 0;
  // Number of payloads, in the order posted, that were returned to the caller.
  virtual uint64_t completed() const = 0;
  // Whether all posted messages have left; their payloads may still be borrowed.
  virtual bool flushed() const = 0;
  // Whether nothing waits and nothing is borrowed.
  virtual bool settled() const = 0;
  // Ends the oldest borrowing by copying that payload into the lane's own memory. A lane has room
  // for at least one copy, on which a verified plan relies; without room this does nothing.
  virtual void detach() = 0;

  // The paths that are in trouble. `unanswered_s`: for how long other connections over the same
  // paths have been unanswered, by path.
  virtual std::vector<PathTrouble> troubles(
      const std::vector<double>& /*unanswered_s*/ = {}) const {
    return {};
  }

  // Descriptors that a sleeper has to watch; empty where the communicator has them already.
  virtual std::vector<int> descriptors() const { return {}; }
  // Before a sleep: later arrivals make a descriptor of the lane readable.
  virtual void prepare_sleep(Sleep&) {}
  // Called about every 100 ms if descriptors() has any, even while no call drives the lane.
  virtual void tend(std::chrono::steady_clock::time_point /*now*/) {}
  // If descriptors() has any: whether the peer's host has all sent messages, or never will.
  virtual bool delivered() const { return true; }

  // If descriptors() has any: whether the peer lacks or may lack a message.
  virtual bool owes() const { return false; }

  // Whether one copy of a payload can serve several lanes of this kind.
  virtual bool shares_payload() const { return false; }
  // Whether the peer is known to have received all that was posted.
  virtual bool is_drained() const { return true; }
  // Posts one payload on several lanes that share it. `apart` and `later`: nothing was posted; post
  // to each lane alone, or to all once their readers have made room.
  enum class Shared { posted, apart, later };
  virtual Shared post_send_to_all(std::span<Lane* const>, const Header&, const std::byte*) {
    return Shared::apart;
  }

  // The oldest message that was not released, or nullptr. Its payload may still be arriving.
  virtual const Header* peek() = 0;
  // The whole payload of the peeked message in place, or nullptr while it is still arriving. Valid
  // until release(). Not of a message in CopyMode::single, which is received.
  virtual const std::byte* lend() = 0;
  // Moves the payload of the peeked message to `destination` (header.length bytes); true once
  // all of it is there. Call again with the same destination until then.
  virtual bool receive(std::byte* destination) = 0;
  // Frees the peeked message and its slot.
  virtual void release() = 0;
  // The peer has left or died: earlier messages are still received, then the lane throws.
  virtual void peer_has_ended() {}
  // The communicator has failed: the lane must not touch payloads any more. False: the peer may
  // still write into memory of its calls; call it again.
  virtual bool abandon() { return true; }

 protected:
  const size_t slot_bytes_;
  size_t max_message_bytes_;
  Statistics& statistics_;

 private:
  const int peer_;
};

// A lane whose messages leave one after the other; messages that cannot leave at once wait here.
class QueuedLane : public Lane {
 public:
  // `device`: the counters of this kind of lane in `statistics`.
  QueuedLane(int peer, size_t slot_bytes, Statistics& statistics, DeviceStatistics& device)
      : Lane(peer, slot_bytes, statistics), device_(device) {}
  uint64_t post_send(const Header& header, const std::byte* payload) final;
  bool flush() override;
  uint64_t completed() const override { return completed_; }
  bool flushed() const final { return queue_.empty(); }
  bool settled() const override { return flushed(); }
  void detach() override;

 protected:
  // True once all of it is sent; false if there is no room now.
  virtual bool push(const Header& header, const std::byte* payload) = 0;
  // Messages of the peer that were released; of a lane whose messages may want a reply.
  virtual uint64_t num_released() const { return 0; }
  // The same, at the time when the currently pushed message was posted: its reply counts from
  // there.
  uint64_t num_released_when_posted() const {
    return flushed() ? num_released() : queue_.front().num_released;
  }
  // Whether the next pushed payload is a copy that the lane owns.
  bool is_detached() const { return detached_; }

  DeviceStatistics& device_;

 private:
  struct Posted {
    Header header;
    const std::byte* payload;
    uint64_t num_released;  // then
  };

  std::deque<Posted> queue_;
  uint64_t completed_ = 0;  // payloads no longer borrowed, in posting order
  bool detached_ = false;   // the front entry's payload is our own copy
  std::vector<std::byte> spare_;
};

// Abandons the lanes that there are, and returns whether no peer may still write.
bool abandon_all(const std::vector<std::unique_ptr<Lane>>& lanes);

// The lanes of one owner that are not settled.
class Backlog {
 public:
  void reserve(size_t num_lanes) { lanes_.reserve(num_lanes); }
  // Called after each post; records only lanes that are not settled.
  void note(Lane& lane);
  // Flushes all of them. True if anything moved. Throws LaneError.
  bool flush();
  // Copies payloads that have left but are borrowed until confirmed; called when there is no other
  // work. True if any was copied.
  bool settle();
  bool empty() const { return lanes_.empty(); }
  void clear() { lanes_.clear(); }
  const std::vector<Lane*>& lanes() const { return lanes_; }

 private:
  std::vector<Lane*> lanes_;
};

}  // namespace hccl
