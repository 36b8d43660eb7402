// What queue pairs send each other, packed into the header of a lane: the base transport header of an
// InfiniBand reliable connection. And what the two halves of a queue pair share: that lane, and the
// memory that may be touched.
#pragma once

#include <string>

#include "base/statistics.h"
#include "lanes/lane.h"
#include "verbs/memory_region.h"

namespace hccl {

enum class PacketKind : uint8_t {
  // Requests: the first fragment of a message describes it.
  send = 1,
  send_with_imm = 2,
  write = 3,
  write_with_imm = 4,
  read = 5,
  more = 6,  // a further fragment of the message that is under way
  // Answers.
  read_response = 7,
  acknowledge = 8,
  receiver_not_ready = 9,  // message `number` and all after it are to be sent again
  reject = 10,             // message `number` failed with status `imm`; the sender is in ERROR
  // Both.
  probe = 11,    // are you there? Answered by acknowledge
  goodbye = 12,  // the sender is in ERROR or closed: nothing follows
};

struct Packet {
  PacketKind kind = PacketKind::acknowledge;
  bool last = false;       // the message ends here
  bool wants_ack = false;  // nothing follows soon: answer now
  uint16_t number = 0;     // of the message, counted by its sender; modulo 2^16
  uint16_t acked = 0;      // how many of the receiver's messages were carried out; modulo 2^16
  uint32_t imm = 0;
  uint32_t size = 0;  // of the whole message
  uint32_t rkey = 0;
  uint64_t remote_address = 0;
};

inline constexpr uint32_t last_bit = 0x100;
inline constexpr uint32_t wants_ack_bit = 0x200;

// Header::kind stays 0: the lane may announce a payload in registered memory instead of copying it.
inline Header encode(const Packet& packet, size_t length) {
  Header header;
  uint32_t kind = static_cast<uint32_t>(packet.kind) | (packet.last ? last_bit : 0) |
                  (packet.wants_ack ? wants_ack_bit : 0);
  header.reserved = packet.number;
  header.id = packet.acked | kind << 16 | static_cast<uint64_t>(packet.imm) << 32;
  header.size = packet.size | static_cast<uint64_t>(packet.rkey) << 32;
  header.fingerprint = packet.remote_address;
  header.length = static_cast<uint32_t>(length);
  return header;
}

inline Packet decode(const Header& header) {
  Packet packet;
  auto kind = static_cast<uint32_t>(header.id) >> 16;
  packet.kind = static_cast<PacketKind>(kind & 0xff);
  packet.last = kind & last_bit;
  packet.wants_ack = kind & wants_ack_bit;
  packet.number = header.reserved;
  packet.acked = static_cast<uint16_t>(header.id);
  packet.imm = static_cast<uint32_t>(header.id >> 32);
  packet.size = static_cast<uint32_t>(header.size);
  packet.rkey = static_cast<uint32_t>(header.size >> 32);
  packet.remote_address = header.fingerprint;
  return packet;
}

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
  const uint32_t qp_num;
  Lane* lane = nullptr;
  size_t mtu = 0;
  uint32_t to_acknowledge = 0;  // every packet carries it; the responder counts it up
  uint32_t acknowledged = 0;    // as of the last packet
  uint64_t posted = 0;          // number of the last message on the lane
  QueuePairStatistics statistics = {};

  // Posts one packet; the payload stays borrowed until lane->completed() reaches `posted`. To be
  // called only while the lane is flushed, but for packets without a payload.
  void send(Packet packet, const std::byte* payload = nullptr, size_t length = 0);
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
// Bytes of all pieces. Throws InvalidVerb for too many.
size_t checked_length(std::span<const ScatterGather> pieces, size_t max_pieces);

}  // namespace hccl
