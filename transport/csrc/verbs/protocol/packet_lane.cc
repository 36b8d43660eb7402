#include "verbs/protocol/packet_lane.h"

#include <algorithm>
#include <cstring>

namespace hccl {

void PacketLane::send(Packet packet, const std::byte* payload) {
  packet.acked = acknowledged = to_acknowledge;
  posted = lane->post_send(std::bit_cast<Header>(packet), payload);
  if (!lane->flushed()) statistics.stalls.add(1);
}

ScatterGather locate(std::span<const ScatterGather> pieces, size_t offset) {
  for (const ScatterGather& piece : pieces) {
    if (offset < piece.length) {
      return {piece.address + offset, static_cast<uint32_t>(piece.length - offset), piece.lkey};
    }
    offset -= piece.length;
  }
  return {};
}

Delivery PacketLane::deliver(std::span<const ScatterGather> pieces, size_t offset, size_t length,
                             uint32_t access) {
  if (length == 0) return Delivery::done;
  // The whole fragment is checked before a byte is written.
  ScatterGather parts[max_scatter_gather];
  size_t num_parts = 0;
  for (size_t checked = 0; checked < length; checked += parts[num_parts++].length) {
    ScatterGather& part = parts[num_parts];
    part = locate(pieces, offset + checked);
    part.length = static_cast<uint32_t>(std::min<size_t>(part.length, length - checked));
    if (part.length == 0 || !domain.allows(part, access)) return Delivery::forbidden;
  }
  if (num_parts == 1) {
    bool whole = lane->receive(reinterpret_cast<std::byte*>(parts[0].address));
    return whole ? Delivery::done : Delivery::not_yet;
  }
  const std::byte* payload = lane->lend();
  if (payload == nullptr) return Delivery::not_yet;
  for (const ScatterGather& part : std::span(parts).first(num_parts)) {
    std::memcpy(reinterpret_cast<void*>(part.address), payload, part.length);
    payload += part.length;
  }
  return Delivery::done;
}

}  // namespace hccl
