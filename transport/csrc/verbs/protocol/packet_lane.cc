#include "verbs/protocol/packet_lane.h"

#include <algorithm>
#include <cstring>

namespace hccl {

namespace {

// Below, two copies through the lane are as fast as looking for the peer's memory.
constexpr size_t min_reference_bytes = 4096;
// The most that a driver copies in one turn.
constexpr size_t max_reference_bytes = 1 << 20;

}  // namespace

void PacketLane::send(Packet packet, const std::byte* payload, size_t length) {
  packet.acked = to_acknowledge;
  acknowledged = to_acknowledge;
  if (arena != nullptr && length >= min_reference_bytes) {
    if (auto offset = arena->offset_of(payload, length)) {
      packet.by_reference = true;
      reference = {*offset, length};
      payload = reinterpret_cast<const std::byte*>(&reference);
      length = sizeof reference;
    }
  }
  posted = lane->post_send(encode(packet, length), payload);
  if (packet.by_reference) last_reference = posted;
  if (!lane->flushed()) statistics.stalls.add(1);
}

size_t PacketLane::fragment_length(const std::byte* address, size_t left) const {
  size_t referenced_length = std::min(left, max_reference_bytes);
  if (attributes.path_mtu == 0 && arena != nullptr && left > mtu &&
      arena->offset_of(address, referenced_length)) {
    return referenced_length;
  }
  return std::min(left, mtu);
}

size_t PacketLane::payload_length(const Packet& packet, const Header& header) {
  referenced = nullptr;
  if (!packet.by_reference) return header.length;
  Reference place{};
  const std::byte* payload = header.length == sizeof place ? lane->lend() : nullptr;
  if (payload != nullptr) std::memcpy(&place, payload, sizeof place);
  if (peer_arena != nullptr && place.length <= max_reference_bytes) {
    referenced = peer_arena->at(place.offset, place.length);
  }
  if (referenced == nullptr) throw LaneError(lane->peer(), "a malformed reference");
  return place.length;
}

bool PacketLane::receive(std::byte* destination, size_t length) {
  if (referenced == nullptr) return lane->receive(destination);
  std::memcpy(destination, referenced, length);
  return true;
}

Cursor locate(std::span<const ScatterGather> pieces, size_t offset) {
  for (const ScatterGather& piece : pieces) {
    if (offset < piece.length) {
      return {reinterpret_cast<std::byte*>(piece.address) + offset, piece.length - offset,
              piece.lkey};
    }
    offset -= piece.length;
  }
  return {};
}

size_t total_length(std::span<const ScatterGather> pieces) {
  size_t total = 0;
  for (const ScatterGather& piece : pieces) total += piece.length;
  return total;
}

Delivery PacketLane::deliver(std::span<const ScatterGather> pieces, size_t offset, size_t length) {
  if (length == 0) return Delivery::done;
  // The whole fragment is looked at before a byte is written.
  size_t checked = 0;
  size_t num_cursors = 0;
  Cursor cursors[max_scatter_gather];
  while (checked < length) {
    Cursor cursor = locate(pieces, offset + checked);
    cursor.left = std::min(cursor.left, length - checked);
    auto address = reinterpret_cast<uint64_t>(cursor.address);
    if (cursor.left == 0 ||
        !domain.allows(cursor.lkey, address, cursor.left, access_local_write)) {
      return Delivery::forbidden;
    }
    checked += cursor.left;
    cursors[num_cursors++] = cursor;
  }
  if (num_cursors == 1) {
    return receive(cursors[0].address, length) ? Delivery::done : Delivery::not_yet;
  }
  const std::byte* payload = lend();
  if (payload == nullptr) return Delivery::not_yet;
  for (size_t i = 0; i < num_cursors; ++i) {
    std::memcpy(cursors[i].address, payload, cursors[i].left);
    payload += cursors[i].left;
  }
  return Delivery::done;
}

}  // namespace hccl
