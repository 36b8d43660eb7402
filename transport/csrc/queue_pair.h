// One ordered, reliable lane between two ranks: the interface that every provider implements.
//
// Verbs semantics of a reliable connection: messages arrive once, whole and in the order posted.
// A queue pair belongs to one communicator and is touched only by the thread that drives it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "statistics.h"

namespace hccl {

// What travels before every payload. Providers read `length`; the rest belongs to the engine.
struct Header {
  uint64_t fingerprint = 0;  // collectives: the call; point-to-point: the tag
  uint64_t id = 0;
  uint64_t size = 0;
  uint32_t length = 0;  // payload bytes, at most slot_bytes of the communicator
  uint16_t kind = 0;
  uint16_t reserved = 0;
};
static_assert(sizeof(Header) == 32);

// The lane is gone: its peer closed it, or the operating system did.
class LaneError : public std::runtime_error {
 public:
  LaneError(int peer, const std::string& what) : std::runtime_error(what), peer_(peer) {}
  int peer() const { return peer_; }

 private:
  int peer_;
};

class QueuePair {
 public:
  QueuePair(int peer, size_t slot_bytes, Statistics& statistics);
  virtual ~QueuePair() = default;
  QueuePair(const QueuePair&) = delete;
  QueuePair& operator=(const QueuePair&) = delete;

  int peer() const { return peer_; }

  // Posts a SEND; never blocks. The payload is borrowed until completed() reaches the number
  // returned. Throws LaneError.
  uint64_t post_send(const Header& header, const std::byte* payload);
  // Moves what the lane can take now. True if anything moved. Throws LaneError.
  bool flush();
  // Frees the oldest borrowed payload by copying it into the lane's own slot: each lane holds one
  // message in flight, which is what a verified plan counts on.
  void detach();
  uint64_t completed() const { return completed_; }
  bool flushed() const { return head_ == queue_.size(); }

  // Whether one copy of a payload can serve several lanes of this kind.
  virtual bool shares_payload() const { return false; }
  // Posts one payload on several lanes that share it. False: no room now, nothing happened.
  virtual bool post_send_to_all(std::span<QueuePair* const> lanes, const Header& header,
                                const std::byte* payload);

  // The oldest message that was not released, or nullptr. Its payload may still be on its way.
  virtual const Header* peek() = 0;
  // The whole payload of the peeked message in place, or nullptr while it is still arriving. Valid
  // until release().
  virtual const std::byte* lend() = 0;
  // Moves the payload of the peeked message to `destination` (header.length bytes); true once
  // all of it is there. Call again with the same destination until then.
  virtual bool receive(std::byte* destination) = 0;
  // Frees the peeked message and its slot.
  virtual void release() = 0;

 protected:
  // Sends from `offset` on; advances it. True once header and payload left the caller's memory.
  virtual bool push(const Header& header, const std::byte* payload, size_t& offset) = 0;

  const size_t slot_bytes_;
  Statistics& statistics_;

 private:
  struct Posted {
    Header header;
    const std::byte* payload;
  };

  void pop();

  const int peer_;
  std::vector<Posted> queue_;  // [head_, end) waits; it keeps its capacity
  size_t head_ = 0;
  size_t offset_ = 0;       // bytes of the front entry that left, header included
  uint64_t completed_ = 0;  // payloads no longer borrowed, in posting order
  bool detached_ = false;   // the front entry's payload is our own copy
  std::vector<std::byte> spare_;
};

// The lanes of one owner on which posted messages still wait to leave.
class Backlog {
 public:
  void reserve(size_t num_lanes) { lanes_.reserve(num_lanes); }
  // To be called after each post; takes note only if something waits.
  void note(QueuePair& lane);
  // Moves what can move. True if anything did. Throws LaneError.
  bool flush();
  bool empty() const { return lanes_.empty(); }
  void clear() { lanes_.clear(); }
  const std::vector<QueuePair*>& lanes() const { return lanes_; }

 private:
  std::vector<QueuePair*> lanes_;
};

}  // namespace hccl
