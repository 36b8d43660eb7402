// What the two halves of a queue pair share: the lane, and the memory that may be touched.
#pragma once

#include <string>

#include "verbs/memory_region.h"
#include "verbs/protocol/packet.h"
#include "base/statistics.h"

namespace hccl {

// What ends the queue pair, and the statuses of the requests that end with it.
struct Fault {
  Status send = Status::flushed;  // of the oldest send request that is not acknowledged
  Status recv = Status::flushed;  // of the oldest RECV
  Status rejection = Status::success;  // sent to the peer, about its message `number`
  uint16_t number = 0;
  std::string text = {};
};

enum class Delivery { done, not_yet, forbidden };

// Guarded by the lock of its queue pair.
struct PacketLane {
  ProtectionDomain& domain;
  QueuePairAttributes attributes;
  Lane* lane = nullptr;
  size_t mtu = 0;
  uint32_t to_acknowledge = 0;  // every packet carries it; the responder counts it up
  uint32_t acknowledged = 0;    // as of the last packet
  uint64_t posted = 0;          // number of the last message on the lane
  QueuePairStatistics statistics = {};

  // Posts one packet; the payload stays borrowed until lane->completed() reaches `posted`. To be
  // called only while the lane is flushed, but for packets without a payload.
  void send(Packet packet, const std::byte* payload, size_t length);
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
