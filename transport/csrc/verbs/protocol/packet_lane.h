// The packets of two queue pairs: the base transport header of an InfiniBand reliable connection,
// in the header of a lane. The two halves of a queue pair share that lane, and the memory that may
// be touched.
#pragma once

#include <bit>
#include <string>

#include "base/statistics.h"
#include "lanes/lane.h"
#include "verbs/memory_region.h"

namespace hccl {

enum class PacketKind : uint8_t {
  // Requests, in the order of Opcode: the first fragment of a message describes it.
  send = 1,
  send_with_imm = 2,
  write = 3,
  write_with_imm = 4,
  read = 5,
  more = 6,  // a further fragment of the current message
  // Answers.
  read_response = 7,
  acknowledge = 8,
  receiver_not_ready = 9,  // message `number` and all later ones must be sent again
  // The last packet: the sender is closed or in ERROR. `imm` is 0, or the status of its oldest
  // failed request.
  goodbye = 10,
};

// Field for field a Header, whose kind stays 0: so the lane may announce a payload in registered
// memory instead of copying it.
struct Packet {
  uint64_t remote_address = 0;
  uint16_t acked = 0;  // number of executed messages of the receiver; modulo 2^16
  PacketKind kind = PacketKind::acknowledge;
  uint8_t last : 1 = 0;       // the message ends here
  uint8_t wants_ack : 1 = 0;  // no packet follows soon: answer now
  uint8_t unused : 6 = 0;
  uint32_t imm = 0;
  uint32_t size = 0;  // of the whole message
  uint32_t rkey = 0;
  uint32_t length = 0;  // of the payload
  uint16_t kind_of_header = 0;
  uint16_t number = 0;  // of the message, counted by its sender; modulo 2^16
};
static_assert(sizeof(Packet) == sizeof(Header));

// Ends a queue pair, with the statuses of the requests that end with it.
struct Fault {
  Status send = Status::flushed;       // of the oldest send request that is not acknowledged
  Status recv = Status::flushed;       // of the oldest RECV
  Status rejection = Status::success;  // of the peer's oldest request
  std::string text = {};
};

enum class Delivery { done, not_yet, forbidden };

// Guarded by the lock of its queue pair.
struct PacketLane {
  ProtectionDomain& domain;
  QueuePairAttributes attributes;
  const uint32_t qp_num;
  Lane* lane = nullptr;
  size_t mtu = 0;
  uint16_t to_acknowledge = 0;  // every packet carries it; the responder counts it up
  uint16_t acknowledged = 0;    // as of the last packet
  uint64_t posted = 0;          // number of the last message on the lane
  QueuePairStatistics statistics = {};

  // Posts one packet; the payload stays borrowed until lane->completed() reaches `posted`. Packets
  // with a payload may be posted only while the lane is flushed.
  void send(Packet packet, const std::byte* payload = nullptr);
  // Moves the payload of the peeked message to `offset` of a scatter list.
  Delivery deliver(std::span<const ScatterGather> pieces, size_t offset, size_t length,
                   uint32_t access);
};

// Returns the rest of the piece that contains `offset` of a list.
ScatterGather locate(std::span<const ScatterGather> pieces, size_t offset);

}  // namespace hccl
