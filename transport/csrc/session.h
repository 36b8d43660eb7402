// What the two halves of a queue pair share: the lane, and the memory that may be touched.
#pragma once

#include <string>

#include "memory_region.h"
#include "packet.h"
#include "statistics.h"

namespace hccl {

// Ends the queue pair, and says what becomes of the requests.
struct Fault {
  Status send = Status::flushed;  // of the oldest send request that is not acknowledged
  Status recv = Status::flushed;  // of the oldest RECV
  Status refusal = Status::success;  // told to the peer, about its message `number`
  uint16_t number = 0;
  std::string text = {};
};

// Counters of one queue pair.
struct VerbsStatistics {
  Counter sent_messages, sent_bytes, received_messages, received_bytes;
  Counter rnr_retries;  // the peer had no RECV posted, so a message was sent again
  Counter timeouts;     // the peer was silent for `timeout`
  Counter stalls;       // the lane could not take a fragment at once
};

enum class Delivery { done, not_yet, forbidden };

// Guarded by the lock of its queue pair.
struct Session {
  ProtectionDomain& domain;
  QueuePairAttributes attributes;
  Lane* lane = nullptr;
  size_t mtu = 0;
  uint32_t to_acknowledge = 0;  // every packet tells it; the responder counts it up
  uint32_t acknowledged = 0;    // what the peer was told last
  uint64_t posted = 0;          // number of the last message on the lane
  VerbsStatistics statistics = {};

  // Posts one packet; the payload stays borrowed until lane->completed() reaches `posted`.
  void send(Packet packet, const std::byte* payload, size_t length) {
    packet.acked = to_acknowledge;
    acknowledged = to_acknowledge;
    posted = lane->post_send(encode(packet, length), payload);
    if (!lane->flushed()) statistics.stalls.add(1);
  }

  // Moves the payload of the peeked message to `offset` of a scatter list.
  Delivery deliver(std::span<const ScatterGather> pieces, size_t offset, size_t length);
};

// The piece that holds `offset` of a list, and what is left of it from there.
struct Cursor {
  std::byte* address = nullptr;
  size_t left = 0;
  uint32_t lkey = 0;
};
Cursor locate(std::span<const ScatterGather> pieces, size_t offset);
size_t total_length(std::span<const ScatterGather> pieces);

}  // namespace hccl
