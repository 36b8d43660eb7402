#include "verbs/protocol/packet_lane.h"

#include <algorithm>
#include <cstring>

namespace hccl {

void PacketLane::send(Packet packet, const std::byte* payload, size_t length) {
  packet.acked = static_cast<uint16_t>(to_acknowledge);
  acknowledged = to_acknowledge;
  posted = lane->post_send(encode(packet, length), payload);
  if (!lane->flushed()) statistics.stalls.add(1);
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

size_t checked_length(std::span<const ScatterGather> pieces, size_t max_pieces) {
  if (pieces.size() > max_pieces) throw InvalidVerb("more scatter/gather pieces than max_sge");
  size_t total = 0;
  for (const ScatterGather& piece : pieces) total += piece.length;
  if (total > max_message_bytes) throw InvalidVerb("a message has 2^31 bytes at most");
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
    return lane->receive(cursors[0].address) ? Delivery::done : Delivery::not_yet;
  }
  const std::byte* payload = lane->lend();
  if (payload == nullptr) return Delivery::not_yet;
  for (size_t i = 0; i < num_cursors; ++i) {
    std::memcpy(cursors[i].address, payload, cursors[i].left);
    payload += cursors[i].left;
  }
  return Delivery::done;
}

}  // namespace hccl
