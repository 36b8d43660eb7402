#include "lanes/shared_memory/shm.h"

#include <algorithm>
#include <cstring>

#include "base/copy.h"

namespace hccl {

namespace {

// Header::kind of a message whose source may be overwritten before it is received.
constexpr uint16_t always_copied = 0xffff;

// Below this, one copy by the kernel costs more than two others.
constexpr size_t min_single_bytes = 8192;

bool stays(int slot) { return slot == announced || slot == remote; }

}  // namespace

ShmLane::ShmLane(int peer, const Ends& ends, std::shared_ptr<Outbox> outbox, Statistics& statistics)
    : QueuedLane(peer, ends.mine->shape().slot_bytes, statistics, statistics.shm),
      ends_(ends),
      outbox_(std::move(outbox)),
      out_(ends.mine->ring(ends.their_local_rank, ends.channel)),
      in_(ends.theirs->ring(ends.my_local_rank, ends.channel)),
      my_consumed_(ends.mine->consumed(ends.their_local_rank, ends.channel)),
      their_consumed_(ends.theirs->consumed(ends.my_local_rank, ends.channel)),
      joint_reader_(ends.mine->joint_entry(ends.their_local_rank, ends.channel),
                    ends.theirs->joint_entry(ends.my_local_rank, ends.channel)),
      joint_writer_(ends.mine->joint_entry(ends.their_local_rank, ends.channel),
                    ends.theirs->joint_entry(ends.my_local_rank, ends.channel)) {
  outbox_->add_lane(this);
}

void ShmLane::reclaim() {
  uint64_t consumed = their_consumed_.count.load(std::memory_order_seq_cst);
  if (consumed > sent_) throw LaneError(peer(), "a malformed counter in shared memory");
  for (; reclaimed_ < consumed; ++reclaimed_) {
    Sent sent = sent_slots_[reclaimed_ % ring_entries];
    if (stays(sent.slot)) --num_announced_;
    if (sent.slot < 0) continue;
    outbox_->done_reading(sent.slot);
    if (!sent.shared) --own_slots_;
  }
}

bool ShmLane::ring_is_full() {
  if (sent_ - reclaimed_ < ring_entries) return false;
  reclaim();
  return sent_ - reclaimed_ >= ring_entries;
}

void ShmLane::set_arenas(std::shared_ptr<Arena> mine, std::shared_ptr<ArenaWindow> theirs,
                         size_t min_announced_bytes) {
  min_announced_bytes_ = min_announced_bytes;
  if (mine && mine->window()) arena_ = std::move(mine);
  their_arena_ = std::move(theirs);
  if (their_arena_) my_consumed_.maps_arena.store(1, std::memory_order_relaxed);
}

bool ShmLane::read_from(pid_t process) {
  their_memory_ = RemoteMemory::open(process, *ends_.theirs);
  if (their_memory_) my_consumed_.reads_process.store(1, std::memory_order_relaxed);
  return their_memory_.has_value();
}

uint64_t ShmLane::completed() const {
  if (num_announced_ == 0) return QueuedLane::completed();
  uint64_t oldest = reclaimed_;
  while (!stays(sent_slots_[oldest % ring_entries].slot)) ++oldest;
  return sent_slots_[oldest % ring_entries].number - 1;
}

bool ShmLane::flush() {
  int before = num_announced_;
  uint64_t sent_before = sent_;
  if (before > 0) reclaim();
  return help_to_copy() || QueuedLane::flush() || num_announced_ < before || sent_ != sent_before;
}

// Helps with the message that the peer receives next.
bool ShmLane::help_to_copy() {
  if (reclaimed_ == sent_ || !their_memory_) return false;
  const Sent& next = sent_slots_[reclaimed_ % ring_entries];
  if (next.slot != remote || next.num_bytes < min_joint_bytes) return false;
  JointMessage message{reclaimed_ + 1, next.num_bytes};
  if (!joint_writer_.take(message)) return false;
  joint_writer_.write(message, next.source, *their_memory_);
  ends_.their_doorbell->message_posted();  // the peer may sleep until that is written
  return true;
}

void ShmLane::detach() {
  // An announced payload stays in place until the peer has read it.
  if (num_announced_ > 0) return reclaim();
  QueuedLane::detach();
}

bool ShmLane::abandon() {
  asked_.forget(received_);
  for (const Reply& reply : asked_.pending()) {
    auto offset = arena_->offset_of(reply.address, reply.num_bytes);
    if (offset) arena_->retire(*offset);
  }
  asked_.clear();
  return joint_reader_.abandon();
}

// Announced memory may have any contents once a call of its owner failed. The fence keeps what was
// read of it before the check; it pairs with Segment::withdraw().
void ShmLane::check_valid() const {
  std::atomic_thread_fence(std::memory_order_acquire);
  if (ends_.theirs->is_withdrawn()) {
    throw LaneError(peer(), "its call failed while its memory was in use");
  }
}

// The payload's offset in the arena, if it is to be announced.
std::optional<uint64_t> ShmLane::offset_of(const Header& header, const std::byte* payload) const {
  if (header.length < min_announced_bytes_ || header.kind == always_copied || !arena_ ||
      their_consumed_.maps_arena.load(std::memory_order_relaxed) == 0) {
    return std::nullopt;
  }
  return arena_->offset_of(payload, header.length);
}

// The number of the peer's message that is to be written where this payload lies; 0: none.
uint64_t ShmLane::ask_for_reply(const Header& header, const std::byte* payload) {
  uint64_t number = num_released_when_posted() + header.kind;
  if (!header.wants_reply || number <= received_) return 0;
  asked_.forget(received_);
  Reply reply{.number = number,
              .fingerprint = header.fingerprint,
              .address = const_cast<std::byte*>(payload),
              .num_bytes = header.length};
  return asked_.add(reply) ? number : 0;
}

bool ShmLane::announce(const Header& header, const std::byte* payload, uint64_t offset) {
  Announcement announcement{offset, ask_for_reply(header, payload)};
  ++num_announced_;
  statistics_.announced.add(1);
  return publish(header, reinterpret_cast<const std::byte*>(&announcement), announced, false);
}

bool ShmLane::stays_in_place(const Header& header) const {
  return header.copy_mode == CopyMode::single && header.length >= min_single_bytes &&
         header.kind != always_copied && !is_detached() &&
         their_consumed_.reads_process.load(std::memory_order_relaxed) != 0;
}

bool ShmLane::leave_in_place(const Header& header, const std::byte* payload) {
  Announcement announcement{reinterpret_cast<uint64_t>(payload), 0};
  ++num_announced_;
  publish(header, reinterpret_cast<const std::byte*>(&announcement), remote, false);
  Sent& sent = sent_slots_[(sent_ - 1) % ring_entries];
  sent.source = payload;
  sent.num_bytes = header.sender_waits ? header.length : 0;
  return true;
}

// The destination of the next message; null: none.
const Reply* ShmLane::reply_for(const Header& header) {
  promised_.forget(sent_);
  return promised_.find(sent_ + 1, header.fingerprint, header.length);
}

bool ShmLane::write_reply(const Header& header, const Reply& reply, const std::byte* payload) {
  check_valid();
  copy(reply.address, payload, reply.num_bytes);
  statistics_.announced.add(1);
  return publish(header, nullptr, written, false);
}

bool ShmLane::publish(const Header& header, const std::byte* payload, int slot, bool shared) {
  RingEntry& entry = out_[sent_ % ring_entries];
  entry.slot = slot;
  entry.header = header;
  if (slot == in_entry && header.length) std::memcpy(entry.payload, payload, header.length);
  if (stays(slot)) std::memcpy(entry.payload, payload, sizeof(Announcement));
  sent_slots_[sent_ % ring_entries] = {slot, shared, QueuedLane::completed() + 1};
  ++sent_;
  entry.sequence.store(static_cast<uint32_t>(sent_), std::memory_order_seq_cst);
  if (pushed_bytes_ == 0) {
    device_.messages.add(1);
    device_.bytes.add(header.length);
  }
  ends_.their_doorbell->message_posted();
  return true;
}

bool ShmLane::push(const Header& header, const std::byte* payload) {
  if (ring_is_full()) return false;
  if (pushed_bytes_ > 0) return push_parts(header, payload);
  const Reply* reply = reply_for(header);
  if (reply != nullptr) return write_reply(header, *reply, payload);
  if (auto offset = offset_of(header, payload)) return announce(header, payload, *offset);
  if (stays_in_place(header)) return leave_in_place(header, payload);
  return push_parts(header, payload);
}

bool ShmLane::push_parts(const Header& header, const std::byte* payload) {
  if (header.length <= inline_bytes) return publish(header, payload, in_entry, false);
  do {
    size_t num_bytes = std::min(slot_bytes_, header.length - pushed_bytes_);
    outbox_->reclaim();  // may find that this lane holds none
    if (ring_is_full()) return false;
    int slot = outbox_->write({payload + pushed_bytes_, num_bytes}, 1, !holds_slot());
    if (slot < 0) return false;
    ++own_slots_;
    publish(header, nullptr, slot, false);
    pushed_bytes_ += num_bytes;
  } while (pushed_bytes_ < header.length);
  pushed_bytes_ = 0;
  return true;
}

Lane::Shared ShmLane::post_send_to_all(std::span<Lane* const> lanes, const Header& header,
                                       const std::byte* payload) {
  if (header.length <= inline_bytes || header.length > slot_bytes_) return Shared::apart;
  for (Lane* lane : lanes) {
    ShmLane& one = static_cast<ShmLane&>(*lane);
    if (!one.flushed() || one.ring_is_full()) return Shared::apart;
    if (one.reply_for(header) || one.offset_of(header, payload)) return Shared::apart;
    if (one.stays_in_place(header)) return Shared::apart;
  }
  outbox_->reclaim();
  int slot = outbox_->write({payload, header.length}, static_cast<int>(lanes.size()), false);
  if (slot < 0) return Shared::later;
  for (Lane* lane : lanes) static_cast<ShmLane*>(lane)->publish(header, payload, slot, true);
  return Shared::posted;
}

bool ShmLane::has_entry() const {
  uint32_t expected = static_cast<uint32_t>(received_ + 1);
  return in_[received_ % ring_entries].sequence.load(std::memory_order_seq_cst) == expected;
}

const Header* ShmLane::peek() {
  if (peeked_ > received_ || taken_bytes_ > 0) return &header_;
  if (!has_entry()) return nullptr;
  const RingEntry& entry = in_[received_ % ring_entries];
  header_ = entry.header;
  slot_ = entry.slot;
  size_t limit = slot_ == in_entry ? inline_bytes : max_message_bytes_;
  if (slot_ == in_entry) payload_ = nullptr;
  if (slot_ < in_entry) payload_ = find_payload(entry);
  if (slot_ > in_entry) payload_ = find_part(std::min<size_t>(header_.length, slot_bytes_));
  bool is_found = payload_ != nullptr || slot_ == in_entry || (slot_ == remote && their_memory_);
  if (header_.length > limit || !is_found) {
    throw LaneError(peer(), "a malformed message in shared memory");
  }
  peeked_ = received_ + 1;
  return &header_;
}

// Returns the request that the peeked message replies to; null: it is not a reply.
const Reply* ShmLane::asked_for() const {
  return asked_.find(received_ + 1, header_.fingerprint, header_.length);
}

// The payload of an announced or written message; nullptr if the place is invalid.
std::byte* ShmLane::find_payload(const RingEntry& entry) {
  offered_ = {};
  if (slot_ == written) {
    asked_.forget(received_);
    const Reply* asked = asked_for();
    return asked != nullptr ? asked->address : nullptr;
  }
  Announcement announcement;
  std::memcpy(&announcement, entry.payload, sizeof announcement);
  remote_address_ = announcement.offset;
  if (slot_ != announced || !their_arena_) return nullptr;
  std::byte* address = their_arena_->at(announcement.offset, header_.length);
  offered_ = {announcement.reply, header_.fingerprint, address, header_.length};
  return address;
}

const std::byte* ShmLane::lend() {
  if (slot_ >= 0 && header_.length > slot_bytes_) {
    throw LaneError(peer(), "a message in several slots, where one is reduced");
  }
  if (slot_ == remote) throw LaneError(peer(), "a message in its own memory, where one is reduced");
  return payload_ != nullptr ? payload_ : in_[received_ % ring_entries].payload;
}

bool ShmLane::receive_remote(std::byte* destination) {
  if (!header_.sender_waits || header_.length < min_joint_bytes) {
    if (!their_memory_->read(remote_address_, destination, header_.length)) throw_unreadable();
    return true;
  }
  auto outcome =
      joint_reader_.copy({peeked_, header_.length}, *their_memory_, remote_address_, destination);
  if (outcome == JointReader::Outcome::unreadable) throw_unreadable();
  return outcome == JointReader::Outcome::copied;
}

void ShmLane::throw_unreadable() const {
  check_valid();
  throw LaneError(peer(), "its memory cannot be read any more");
}

bool ShmLane::receive(std::byte* destination) {
  if (slot_ == remote) return receive_remote(destination);
  if (taken_bytes_ > 0 || (slot_ >= 0 && header_.length > slot_bytes_)) {
    return receive_parts(destination);
  }
  const std::byte* payload = lend();
  if (payload == destination || header_.length == 0) return true;
  hccl::copy(destination, payload, header_.length);
  return true;
}

bool ShmLane::receive_parts(std::byte* destination) {
  while (taken_bytes_ < header_.length) {
    if (peeked_ == received_) {
      if (!has_entry()) return false;
      const RingEntry& entry = in_[received_ % ring_entries];
      slot_ = entry.slot;
      payload_ = find_part(std::min(slot_bytes_, header_.length - taken_bytes_));
      if (payload_ == nullptr || entry.header.length != header_.length) {
        throw LaneError(peer(), "a malformed message in shared memory");
      }
      peeked_ = received_ + 1;
    }
    size_t num_bytes = std::min(slot_bytes_, header_.length - taken_bytes_);
    hccl::copy(destination + taken_bytes_, payload_, num_bytes);
    taken_bytes_ += num_bytes;
    if (taken_bytes_ < header_.length) free_entry();
  }
  return true;
}

void ShmLane::release() {
  if (slot_ == remote) {
    statistics_.single_copies.add(1);
  } else if (slot_ < in_entry) {
    statistics_.announced.add(1);
  }
  if (stays(slot_)) {
    check_valid();
    if (offered_.number > sent_) promised_.add(offered_);
  }
  taken_bytes_ = 0;
  free_entry();
}

void ShmLane::free_entry() {
  my_consumed_.count.store(++received_, std::memory_order_seq_cst);
  ends_.their_doorbell->space_freed();
}

}  // namespace hccl
