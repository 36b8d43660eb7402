#include "verbs/lane_slots.h"

#include <cstring>
#include <limits>
#include <string>
#include <utility>

namespace hccl {

namespace {

constexpr uint64_t magic_number = 0x326e616c6c636368;  // "hccllan2"
constexpr size_t alignment = 64;

}  // namespace

QueuePairAttributes LaneSlots::attributes() {
  QueuePairAttributes attributes;
  // A message may take two requests, and its release one. Besides: the advertisement, a read, a probe,
  // the last write.
  attributes.max_send_wr = 4 * num_slots + 4;
  attributes.max_recv_wr = num_recvs + 1;
  attributes.max_sge = 2;
  attributes.max_inline = 0;
  // A peer that is silent is the communicator's to judge: its calls have deadlines.
  attributes.retry_count = std::numeric_limits<int>::max();
  return attributes;
}

LaneSlots::LaneSlots(std::vector<std::shared_ptr<QueuePairFace>> pairs, size_t slot_bytes)
    : slot_bytes_(slot_bytes),
      stride_((sizeof(Header) + sizeof(Note) + slot_bytes + alignment - 1) / alignment * alignment),
      memory_(2 * num_slots * stride_ + 2 * pairs.size() * sizeof(Advertisement)) {
  if (pairs.empty() || pairs.size() > max_pairs) throw InvalidVerb("a lane has 1 to 16 queue pairs");
  for (auto& pair : pairs) {
    size_t index = ways_.size();
    // Memory that is registered twice counts twice where its amount is limited.
    bool shares = index > 0 && pair->domain() == ways_[0].pair->domain();
    Way way{std::move(pair)};
    if (shares) {
      way.lkey = ways_[0].lkey;
      rkeys_.push_back(rkeys_[0]);
    } else {
      way.lkey = way.pair->register_memory(memory_, access_local_write).lkey;
      std::span<std::byte> open = std::span(memory_).first(num_slots * stride_);
      uint32_t access = access_local_write | access_remote_write;
      rkeys_.push_back(way.pair->register_memory(open, access).rkey);
    }
    ScatterGather piece{reinterpret_cast<uint64_t>(theirs(index)), sizeof(Advertisement), way.lkey};
    way.pair->post_recv({0, {&piece, 1}});
    for (size_t i = 0; i < num_recvs; ++i) way.pair->post_recv({0, {}});
    ways_.push_back(std::move(way));
  }
}

void LaneSlots::advertise() {
  for (size_t i = 0; i < ways_.size(); ++i) {
    Advertisement advertisement{magic_number, reinterpret_cast<uint64_t>(memory_.data()), slot_bytes_,
                                num_slots, rkeys_[i]};
    std::memcpy(mine(i), &advertisement, sizeof advertisement);
    ScatterGather piece{reinterpret_cast<uint64_t>(mine(i)), sizeof advertisement, ways_[i].lkey};
    ways_[i].pair->post_send({.pieces = {&piece, 1}});
  }
}

std::string LaneSlots::take_advertisement(Way& way, size_t length) {
  Advertisement advertised;
  if (length != sizeof advertised || way.is_open) return "a malformed advertisement";
  auto index = static_cast<size_t>(&way - ways_.data());
  std::memcpy(&advertised, theirs(index), sizeof advertised);
  bool is_same = their_address_ == 0 || their_address_ == advertised.address;
  if (advertised.magic != magic_number || advertised.num_slots != num_slots || !is_same ||
      advertised.slot_bytes != slot_bytes_ || advertised.address == 0) {
    return "its slots are " + std::to_string(advertised.num_slots) + " of " +
           std::to_string(advertised.slot_bytes) + " bytes, ours are " +
           std::to_string(num_slots) + " of " + std::to_string(slot_bytes_);
  }
  their_address_ = advertised.address;
  way.their_rkey = advertised.rkey;
  way.is_open = true;
  ++num_advertised_;
  return {};
}

}  // namespace hccl
