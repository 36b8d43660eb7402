#include "verbs/lane/lane_slots.h"

#include <cstring>
#include <limits>
#include <new>
#include <string>
#include <utility>

namespace hccl {

namespace {

constexpr uint64_t magic_number = 0x336e616c6c636368;  // "hccllan3"
constexpr size_t alignment = 64;
constexpr std::align_val_t page{4096};

size_t up_to(size_t unit, size_t size) { return (size + unit - 1) / unit * unit; }

std::byte* new_pages(size_t num_bytes) {
  auto* pages = new (page) std::byte[num_bytes];
  std::memset(pages, 0, num_bytes);  // the peer may read unwritten parts
  return pages;
}

}  // namespace

void LaneSlots::FreePages::operator()(std::byte* pages) const { ::operator delete[](pages, page); }

QueuePairAttributes LaneSlots::attributes() {
  QueuePairAttributes attributes;
  // A message may take two requests, and its release one. Also: the advertisement, a read, a probe,
  // the last write.
  attributes.max_send_wr = 4 * num_slots + 4;
  attributes.max_recv_wr = num_recvs + 1;
  attributes.max_sge = 2;
  attributes.max_inline = 0;
  // The communicator handles a silent peer: its calls have deadlines.
  attributes.retry_count = std::numeric_limits<int>::max();
  return attributes;
}

LaneSlots::LaneSlots(std::vector<Pairs> paths, size_t slot_bytes)
    : slot_bytes_(slot_bytes),
      stride_(up_to(alignment, sizeof(Header) + sizeof(Note) + slot_bytes)),
      num_out_(paths.size() > 1 ? num_slots : num_slots / 2),
      out_at_(up_to(static_cast<size_t>(page), num_slots * stride_)),
      num_bytes_(up_to(
          static_cast<size_t>(page),
          out_at_ + num_out_ * stride_ + paths.size() * max_pairs * 2 * sizeof(Advertisement))),
      memory_(new_pages(num_bytes_)) {
  if (paths.empty()) throw InvalidVerb("a lane has queue pairs of one device at least");
  for (Pairs& pairs : paths) {
    if (pairs.empty() || pairs.size() > max_pairs || pairs.size() != paths[0].size()) {
      throw InvalidVerb("a lane has 1 to 16 queue pairs on each device, as many on each");
    }
  }
  paths_.resize(paths.size());
  for (size_t i = 0; i < paths.size(); ++i) {
    Path& path = paths_[i];
    path.ways.resize(paths[i].size());
    for (size_t j = 0; j < path.ways.size(); ++j) {
      path.ways[j].pair = std::move(paths[i][j]);
      prepare(path, path.ways[j], j > 0 ? &path.ways[0] : nullptr);
    }
  }
}

// Memory that is registered twice counts twice where its amount is limited: a queue pair uses what
// another one of its domain has registered.
void LaneSlots::prepare(Path& path, Way& way, const Way* sharing) {
  if (sharing != nullptr && sharing->pair->domain() == way.pair->domain()) {
    way.lkey = sharing->lkey;
    way.slots_lkey = sharing->slots_lkey;
    way.slots_rkey = sharing->slots_rkey;
  } else {
    std::span<std::byte> all(memory_.get(), num_bytes_);
    MemoryRegion open =
        way.pair->register_memory(all.first(out_at_), access_local_write | access_remote_write);
    way.slots_lkey = open.lkey;
    way.slots_rkey = open.rkey;
    way.lkey = way.pair->register_memory(all.subspan(out_at_), access_local_write).lkey;
  }
  ScatterGather piece{reinterpret_cast<uint64_t>(theirs(path, way)), sizeof(Advertisement),
                      way.lkey};
  way.pair->post_recv({0, {&piece, 1}});
  for (size_t i = 0; i < num_recvs; ++i) way.pair->post_recv({0, {}});
  way.num_recvs = num_recvs + 1;
}

std::byte* LaneSlots::mine(const Path& path, const Way& way) {
  auto index = static_cast<size_t>(&path - paths_.data()) * max_pairs +
               static_cast<size_t>(&way - path.ways.data());
  return &memory_[out_at_ + num_out_ * stride_ + index * 2 * sizeof(Advertisement)];
}

void LaneSlots::advertise(Path& path, const Progress& ours) {
  for (Way& way : path.ways) {
    Advertisement advertisement{magic_number,   reinterpret_cast<uint64_t>(memory_.get()),
                                slot_bytes_,    num_slots,
                                way.slots_rkey, ours};
    std::memcpy(mine(path, way), &advertisement, sizeof advertisement);
    ScatterGather piece{reinterpret_cast<uint64_t>(mine(path, way)), sizeof advertisement,
                        way.lkey};
    way.pair->post_send({.pieces = {&piece, 1}});
  }
}

std::string LaneSlots::take_advertisement(Path& path, Way& way, size_t length) {
  Advertisement advertised;
  if (length != sizeof advertised || way.is_open) return "a malformed advertisement";
  std::memcpy(&advertised, theirs(path, way), sizeof advertised);
  bool is_same = their_address_ == 0 || their_address_ == advertised.address;
  if (advertised.magic != magic_number || advertised.num_slots != num_slots || !is_same ||
      advertised.slot_bytes != slot_bytes_ || advertised.address == 0) {
    return "its slots are " + std::to_string(advertised.num_slots) + " of " +
           std::to_string(advertised.slot_bytes) + " bytes, ours are " + std::to_string(num_slots) +
           " of " + std::to_string(slot_bytes_);
  }
  if (path.num_open > 0 && !(path.theirs == advertised.progress)) {
    return "two accounts of its progress";
  }
  path.theirs = advertised.progress;
  their_address_ = advertised.address;
  way.their_rkey = advertised.rkey;
  way.is_open = true;
  ++path.num_open;
  return {};
}

}  // namespace hccl
