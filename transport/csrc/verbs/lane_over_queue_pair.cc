#include "verbs/lane_over_queue_pair.h"

#include <cstring>
#include <limits>
#include <utility>

namespace hccl {

namespace {

constexpr uint64_t magic_number = 0x656e616c6c636368;  // "hccllane"
constexpr uint32_t message_bit = uint32_t{1} << 31;
constexpr uint32_t credit_mask = 0xffff;
constexpr size_t alignment = 64;
constexpr size_t completions_per_poll = 16;
constexpr auto closing_time = std::chrono::milliseconds(500);
constexpr int longest_sleep_ms = 10;
constexpr auto probe_period = std::chrono::seconds(1);
constexpr uint64_t probe_id = std::numeric_limits<uint64_t>::max();  // no message has this number

}  // namespace

QueuePairAttributes LaneOverQueuePair::attributes() {
  QueuePairAttributes attributes;
  attributes.max_send_wr = 2 * num_slots + 3;  // messages, credits, advertisement, probe, the last write
  attributes.max_recv_wr = num_recvs + 1;
  attributes.max_sge = 1;
  attributes.max_inline = 0;
  // A peer that is silent is the communicator's to judge: its calls have deadlines.
  attributes.retry_count = std::numeric_limits<int>::max();
  return attributes;
}

LaneOverQueuePair::LaneOverQueuePair(int peer, std::shared_ptr<QueuePairFace> pair,
                                     size_t slot_bytes, Statistics& statistics)
    : QueuedLane(peer, slot_bytes, statistics, statistics.verbs),
      stride_((sizeof(Header) + slot_bytes + alignment - 1) / alignment * alignment),
      memory_(2 * num_slots * stride_ + 2 * sizeof(Advertisement)),
      pair_(std::move(pair)) {
  lkey_ = pair_->register_memory(memory_, access_local_write).lkey;
  advertise();
}

void LaneOverQueuePair::advertise() {
  std::byte* mine = &memory_[2 * num_slots * stride_];
  MemoryRegion region = pair_->register_memory(
      std::span(memory_).first(num_slots * stride_), access_local_write | access_remote_write);
  Advertisement advertisement{magic_number, region.address, slot_bytes_, num_slots, region.rkey};
  std::memcpy(mine, &advertisement, sizeof advertisement);
  ScatterGather theirs{reinterpret_cast<uint64_t>(mine + sizeof advertisement),
                       sizeof advertisement, lkey_};
  pair_->post_recv({0, {&theirs, 1}});
  for (size_t i = 0; i < num_recvs; ++i) pair_->post_recv({0, {}});
  ScatterGather piece{reinterpret_cast<uint64_t>(mine), sizeof advertisement, lkey_};
  pair_->post_send({.pieces = {&piece, 1}});
}

LaneOverQueuePair::~LaneOverQueuePair() {
  try {
    // An empty write is the last to end.
    if (failure_.empty() && ended_ < sent_) write(nullptr, 0, send_signaled, 0);
    auto until = VerbsClock::now() + closing_time;
    while (failure_.empty() && ended_ < sent_ && VerbsClock::now() < until) {
      Sleep sleep(Sleeper::caller);
      sleep.limit(until);
      if (!pair_->prepare_sleep(sleep)) sleep.wait(longest_sleep_ms);
      poll();
    }
  } catch (const std::exception&) {
    // The queue pair has failed: nothing more can reach the peer.
  }
  try {
    pair_->close();  // the slots are freed next
  } catch (const LaneInterrupted&) {
    // A destructor cannot raise it.
  }
}

void LaneOverQueuePair::prepare_sleep(Sleep& sleep) {
  if (std::exchange(is_starved_, false)) probe();
  pair_->prepare_sleep(sleep);
}

void LaneOverQueuePair::probe() {
  auto now = VerbsClock::now();
  if (std::exchange(heard_at_, heard_) != heard_) silent_since_ = now;
  if (now < silent_since_ + probe_period) return;
  if (is_probing_ || their_address_ == 0 || !failure_.empty()) return;
  try {
    pair_->post_send({.wr_id = probe_id,
                      .opcode = Opcode::rdma_write,
                      .rkey = their_rkey_,
                      .remote_address = their_address_});
    is_probing_ = true;
  } catch (const QueueFull&) {
    // The requests that fill it are probes enough.
  }
}

void LaneOverQueuePair::throw_if_failed() const {
  if (!failure_.empty()) throw LaneError(peer(), failure_);
}

void LaneOverQueuePair::poll() {
  Completion completions[completions_per_poll];
  size_t count;
  do {
    count = pair_->poll(completions);
    for (size_t i = 0; i < count && failure_.empty(); ++i) take(completions[i]);
  } while (count == completions_per_poll);
  return_credits();
}

void LaneOverQueuePair::take(const Completion& completion) {
  ++heard_;
  if (completion.status != Status::success) {
    return fail("its queue pair failed with status " +
                std::to_string(static_cast<int>(completion.status)) + ": " + pair_->reason());
  }
  if (completion.opcode == Opcode::recv) return take_advertisement(completion.byte_len);
  if (completion.opcode == Opcode::recv_rdma_with_imm) {
    pair_->post_recv({0, {}});
    return take_immediate(completion.imm, completion.byte_len);
  }
  if (completion.wr_id == probe_id) {
    is_probing_ = false;
  } else {
    ended_ = std::max(ended_, completion.wr_id);
  }
}

void LaneOverQueuePair::take_advertisement(size_t length) {
  Advertisement theirs;
  if (length != sizeof theirs || their_address_ != 0) return fail("a malformed advertisement");
  std::memcpy(&theirs, &memory_[2 * num_slots * stride_ + sizeof theirs], sizeof theirs);
  if (theirs.magic != magic_number || theirs.num_slots != num_slots ||
      theirs.slot_bytes != slot_bytes_ || theirs.address == 0) {
    return fail("its slots are " + std::to_string(theirs.num_slots) + " of " +
                std::to_string(theirs.slot_bytes) + " bytes, ours are " +
                std::to_string(num_slots) + " of " + std::to_string(slot_bytes_));
  }
  their_address_ = theirs.address;
  their_rkey_ = theirs.rkey;
}

void LaneOverQueuePair::take_immediate(uint32_t imm, size_t length) {
  credited_ += static_cast<uint16_t>((imm & credit_mask) - credited_);
  if (credited_ > sent_) return fail("it returned credits for messages that were never sent");
  if (!(imm & message_bit)) return;
  if (arrived_ - released_ == num_slots) return fail("it sent a message without a credit");
  lengths_[arrived_++ % num_slots] = length;
}

bool LaneOverQueuePair::has_room() const {
  return their_address_ != 0 && sent_ - credited_ < num_slots && sent_ - ended_ < num_slots;
}

// With send_signaled, its completion means that all messages up to now have left their slots.
void LaneOverQueuePair::write(const std::byte* source, size_t length, uint32_t flags, uint32_t imm) {
  ScatterGather piece{reinterpret_cast<uint64_t>(source), static_cast<uint32_t>(length), lkey_};
  SendRequest request{.wr_id = sent_,
                      .opcode = Opcode::rdma_write_with_imm,
                      .flags = length > 0 && length <= pair_->max_inline() ? flags | send_inline : flags,
                      .imm = imm | static_cast<uint32_t>(released_ & credit_mask),
                      .rkey = their_rkey_};
  if (length > 0) {
    request.remote_address = their_address_ + (sent_ - 1) % num_slots * stride_;
    request.pieces = {&piece, 1};
  }
  pair_->post_send(request);
  returned_ = released_;
}

bool LaneOverQueuePair::push(const Header& header, const std::byte* payload) {
  if (!has_room()) poll();
  throw_if_failed();
  is_starved_ = !has_room();
  if (is_starved_) return false;
  std::byte* slot = slot_out(sent_);
  std::memcpy(slot, &header, sizeof header);
  if (header.length > 0) std::memcpy(slot + sizeof header, payload, header.length);
  ++sent_;
  // A completion for every other slot is enough to know which ones are free.
  uint32_t flags = sent_ % (num_slots / 2) == 0 ? send_signaled : 0;
  write(slot, sizeof header + header.length, flags, message_bit);
  device_.messages.add(1);
  device_.bytes.add(header.length);
  return true;
}

const Header* LaneOverQueuePair::peek() {
  if (peeked_) return &header_;
  if (arrived_ == released_) poll();
  if (arrived_ == released_) {
    throw_if_failed();
    is_starved_ = true;
    return nullptr;
  }
  std::memcpy(&header_, slot_in(released_), sizeof header_);
  if (header_.length > slot_bytes_ ||
      lengths_[released_ % num_slots] != sizeof header_ + header_.length) {
    throw LaneError(peer(), "a malformed message over its queue pair");
  }
  peeked_ = true;
  return &header_;
}

const std::byte* LaneOverQueuePair::lend() { return slot_in(released_) + sizeof header_; }

bool LaneOverQueuePair::receive(std::byte* destination) {
  if (header_.length > 0) std::memcpy(destination, lend(), header_.length);
  return true;
}

void LaneOverQueuePair::release() {
  peeked_ = false;
  ++released_;
  return_credits();
}

void LaneOverQueuePair::return_credits() {
  if (released_ - returned_ < num_slots / 2 || their_address_ == 0 || !failure_.empty()) return;
  try {
    write(nullptr, 0, send_signaled, 0);
  } catch (const QueueFull&) {
    // The next poll() tries again.
  }
}

}  // namespace hccl
