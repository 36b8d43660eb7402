#include "lanes/shared_memory/shm.h"

#include <cstring>

#include "base/copy.h"

namespace hccl {

namespace {

// Header::kind of a message whose source may be overwritten before it is received.
constexpr uint16_t always_copied = 0xffff;

// Below, the distance costs less than it takes to find out.
constexpr size_t min_far_bytes = 8192;

// Who only sends runs ahead, and finds each slot in the cache of the core that has just read it. To take
// its lines back from there costs more than to write past all caches (16 MiB, one reader: 2.0 to 2.7 ms
// beside 1.4).
constexpr size_t min_one_way_bytes = 1 << 20;

// What a remote message is a part of. Less stays in the caches, where two copies cost little.
constexpr size_t min_remote_bytes = 1 << 20;

// With a core for each rank, a slot is read from the cache while the next one is written. That is faster
// for who only sends (16 MiB to one reader: 1.55 ms beside 1.8) and for less than this (two ranks'
// all_gather of 4 MB: 0.26 ms beside 0.40; of 16 MB: 1.16 to 1.6 beside 1.04 to 1.15).
constexpr size_t min_remote_bytes_of_own_cores = 4 << 20;

bool stays(int slot) { return slot == announced || slot == remote; }

}  // namespace

Outbox::Outbox(std::shared_ptr<Segment> segment, int channel)
    : segment_(std::move(segment)), channel_(channel) {
  int num_slots = segment_->shape().num_slots;
  readers_.resize(num_slots);
  for (int i = num_slots; i-- > 0;) free_.push_back(i);
}

int Outbox::write(const Header& header, const std::byte* payload, int num_readers,
                  bool lane_holds_none) {
  // The slot reserved for this very lane counts for it.
  if (free_.size() + lane_holds_none <= num_reserved_) return -1;
  int slot = free_.back();
  free_.pop_back();
  readers_[slot] = num_readers;
  std::byte* to = segment_->slot(channel_, slot);
  bool is_far = header.length >= min_far_bytes && distance_.is_far();
  if (is_far || (header.is_one_way != 0 && header.size >= min_one_way_bytes)) {
    copy_past_caches(to, payload, header.length);
  } else {
    copy(to, payload, header.length);
  }
  return slot;
}

void Outbox::reclaim() {
  num_reserved_ = 0;
  for (ShmLane* lane : lanes_) {
    lane->reclaim();
    num_reserved_ += !lane->holds_slot();
  }
}

ShmLane::ShmLane(int peer, const Ends& ends, std::shared_ptr<Outbox> outbox,
                           Statistics& statistics)
    : QueuedLane(peer, ends.mine->shape().slot_bytes, statistics, statistics.shm),
      ends_(ends),
      outbox_(std::move(outbox)),
      out_(ends.mine->ring(ends.their_local_rank, ends.channel)),
      in_(ends.theirs->ring(ends.my_local_rank, ends.channel)),
      my_consumed_(ends.mine->consumed(ends.their_local_rank, ends.channel)),
      their_consumed_(ends.theirs->consumed(ends.my_local_rank, ends.channel)) {
  outbox_->add_lane(this);
}

void ShmLane::reclaim() {
  uint64_t consumed = their_consumed_.count.load(std::memory_order_seq_cst);
  if (consumed > sent_) throw LaneError(peer(), "a malformed counter in shared memory");
  for (; reclaimed_ < consumed; ++reclaimed_) {
    Sent sent = sent_slots_[reclaimed_ % ring_cells];
    if (stays(sent.slot)) --num_announced_;
    if (sent.slot < 0) continue;
    outbox_->done_reading(sent.slot);
    if (!sent.shared) --own_slots_;
  }
}

// Before anything else reads that line.
void ShmLane::look_at_distance(const Header& header) {
  if (header.length >= min_far_bytes) {
    outbox_->distance().look_at(their_consumed_.count, reclaimed_);
  }
}

bool ShmLane::ring_is_full() {
  if (sent_ - reclaimed_ < ring_cells) return false;
  reclaim();
  return sent_ - reclaimed_ >= ring_cells;
}

void ShmLane::set_arenas(std::shared_ptr<Arena> mine, std::shared_ptr<ArenaWindow> theirs,
                         size_t min_announced_bytes) {
  min_announced_bytes_ = min_announced_bytes;
  if (mine && mine->window()) arena_ = std::move(mine);
  their_arena_ = std::move(theirs);
  if (their_arena_) my_consumed_.maps_arena.store(1, std::memory_order_release);
}

void ShmLane::read_from(pid_t process, bool own_cores) {
  own_cores_ = own_cores;
  their_memory_ = RemoteMemory::open(process, *ends_.theirs);
  if (their_memory_) my_consumed_.reads_process.store(1, std::memory_order_release);
}

uint64_t ShmLane::completed() const {
  if (num_announced_ == 0) return QueuedLane::completed();
  uint64_t oldest = reclaimed_;
  while (!stays(sent_slots_[oldest % ring_cells].slot)) ++oldest;
  return sent_slots_[oldest % ring_cells].number - 1;
}

bool ShmLane::flush() {
  int before = num_announced_;
  if (before > 0) reclaim();
  return QueuedLane::flush() || num_announced_ < before;
}

void ShmLane::detach() {
  // What was announced stays where it is until the peer has read it.
  if (num_announced_ > 0) return reclaim();
  QueuedLane::detach();
}

void ShmLane::abandon() {
  if (asked_.number <= received_) return;
  if (auto offset = arena_->offset_of(asked_.address, asked_.num_bytes)) arena_->retire(*offset);
}

// Announced memory may hold anything once a call of its owner failed.
void ShmLane::check_valid() const {
  if (ends_.theirs->is_withdrawn()) {
    throw LaneError(peer(), "its call failed while its memory was in use");
  }
}

// Where the payload lies in the arena, if it is to be announced.
std::optional<uint64_t> ShmLane::offset_of(const Header& header, const std::byte* payload) const {
  if (header.length < min_announced_bytes_ || header.kind == always_copied || !arena_ ||
      their_consumed_.maps_arena.load(std::memory_order_acquire) == 0) {
    return std::nullopt;
  }
  return arena_->offset_of(payload, header.length);
}

bool ShmLane::announce(const Header& header, const std::byte* payload, uint64_t offset) {
  Announcement announcement{offset, 0};
  if (header.kind != 0 && asked_.number <= received_) {
    announcement.reply = received_ + header.kind;
    asked_ = {announcement.reply, const_cast<std::byte*>(payload), header.length};
  }
  ++num_announced_;
  statistics_.announced.add(1);
  return publish(header, reinterpret_cast<const std::byte*>(&announcement), announced, false);
}

bool ShmLane::stays_in_place(const Header& header, const std::byte* payload) {
  size_t least = own_cores_ ? min_remote_bytes_of_own_cores : min_remote_bytes;
  bool pays = header.size >= least && header.length >= ReadingCost::sample_bytes &&
              (!own_cores_ || header.is_one_way == 0);
  return pays && header.is_only_moved != 0 && header.kind != always_copied &&
         their_consumed_.reads_process.load(std::memory_order_acquire) != 0 &&
         outbox_->reading_cost().is_low(payload);
}

bool ShmLane::leave_in_place(const Header& header, const std::byte* payload) {
  Announcement announcement{reinterpret_cast<uint64_t>(payload), 0};
  ++num_announced_;
  return publish(header, reinterpret_cast<const std::byte*>(&announcement), remote, false);
}

bool ShmLane::awaits_reply(const Header& header) const {
  return reply_.number == sent_ + 1 && reply_.num_bytes == header.length && header.length > 0;
}

bool ShmLane::publish(const Header& header, const std::byte* payload, int slot, bool shared) {
  Cell& cell = out_[sent_ % ring_cells];
  cell.slot = slot;
  cell.header = header;
  if (slot == in_cell && header.length) std::memcpy(cell.payload, payload, header.length);
  if (stays(slot)) std::memcpy(cell.payload, payload, sizeof(Announcement));
  sent_slots_[sent_ % ring_cells] = {slot, shared, QueuedLane::completed() + 1};
  ++sent_;
  cell.sequence.store(static_cast<uint32_t>(sent_), std::memory_order_seq_cst);
  device_.messages.add(1);
  device_.bytes.add(header.length);
  ends_.their_doorbell->message_posted();
  return true;
}

bool ShmLane::push(const Header& header, const std::byte* payload) {
  look_at_distance(header);
  if (ring_is_full()) return false;
  if (awaits_reply(header)) {
    check_valid();
    copy(reply_.address, payload, header.length);
    statistics_.announced.add(1);
    return publish(header, nullptr, written, false);
  }
  if (auto offset = offset_of(header, payload)) return announce(header, payload, *offset);
  if (stays_in_place(header, payload)) return leave_in_place(header, payload);
  int slot = in_cell;
  if (header.length > inline_bytes) {
    outbox_->reclaim();  // may find that this lane holds none
    slot = outbox_->write(header, payload, 1, !holds_slot());
    if (slot < 0) return false;
    ++own_slots_;
  }
  return publish(header, payload, slot, false);
}

Lane::Shared ShmLane::post_send_to_all(std::span<Lane* const> lanes, const Header& header,
                                       const std::byte* payload) {
  if (header.length <= inline_bytes) return Shared::apart;
  static_cast<ShmLane&>(*lanes[next_look_++ % lanes.size()]).look_at_distance(header);
  for (Lane* lane : lanes) {
    ShmLane& one = static_cast<ShmLane&>(*lane);
    if (!one.flushed() || one.ring_is_full()) return Shared::apart;
    if (one.awaits_reply(header) || one.offset_of(header, payload)) return Shared::apart;
  }
  outbox_->reclaim();
  int slot = outbox_->write(header, payload, static_cast<int>(lanes.size()), false);
  if (slot < 0) return Shared::later;
  for (Lane* lane : lanes) static_cast<ShmLane*>(lane)->publish(header, payload, slot, true);
  return Shared::posted;
}

const Header* ShmLane::peek() {
  if (peeked_ > received_) return &header_;
  const Cell& cell = in_[received_ % ring_cells];
  uint32_t expected = static_cast<uint32_t>(received_ + 1);
  if (cell.sequence.load(std::memory_order_seq_cst) != expected) return nullptr;
  header_ = cell.header;
  slot_ = cell.slot;
  size_t limit = slot_ == in_cell ? inline_bytes : slot_bytes_;
  payload_ = slot_ < in_cell ? find_payload(cell) : nullptr;
  bool is_found = payload_ != nullptr || (slot_ == remote && their_memory_);
  if (header_.length > limit || slot_ >= ends_.theirs->shape().num_slots ||
      (slot_ < in_cell && !is_found)) {
    throw LaneError(peer(), "a malformed message in shared memory");
  }
  peeked_ = received_ + 1;
  return &header_;
}

// Where the payload of an announced or written message lies; nullptr if it lies nowhere.
std::byte* ShmLane::find_payload(const Cell& cell) {
  offered_ = {};
  if (slot_ == written) {
    bool expected = asked_.number == received_ + 1 && asked_.num_bytes == header_.length;
    return expected ? asked_.address : nullptr;
  }
  Announcement announcement;
  std::memcpy(&announcement, cell.payload, sizeof announcement);
  if (slot_ == remote) remote_address_ = announcement.offset;
  if (slot_ != announced || !their_arena_) return nullptr;
  std::byte* address = their_arena_->at(announcement.offset, header_.length);
  if (address != nullptr) offered_ = {announcement.reply, address, header_.length};
  return address;
}

const std::byte* ShmLane::lend() {
  if (payload_ != nullptr) return payload_;
  // A sane peer leaves in place only what is received, in collectives that reduce nothing.
  if (slot_ == remote) throw LaneError(peer(), "a message in its own memory, where one is reduced");
  return slot_ < 0 ? in_[received_ % ring_cells].payload
                   : ends_.theirs->slot(ends_.channel, slot_);
}

void ShmLane::read_remote(std::byte* destination) {
  if (their_memory_->read(remote_address_, destination, header_.length)) return;
  check_valid();
  throw LaneError(peer(), "its memory cannot be read any more");
}

bool ShmLane::receive(std::byte* destination) {
  if (slot_ == remote) {
    read_remote(destination);
    return true;
  }
  const std::byte* payload = lend();
  if (payload == destination || header_.length == 0) return true;
  if (header_.size >= min_uncached_bytes) {
    copy_past_caches(destination, payload, header_.length);
  } else {
    copy(destination, payload, header_.length);
  }
  return true;
}

void ShmLane::release() {
  if (slot_ == remote) {
    statistics_.single_copies.add(1);
  } else if (slot_ < in_cell) {
    statistics_.announced.add(1);
  }
  if (stays(slot_)) {
    check_valid();
    if (offered_.number != 0) reply_ = offered_;
  }
  my_consumed_.count.store(++received_, std::memory_order_seq_cst);
  ends_.their_doorbell->space_freed();
}

}  // namespace hccl
