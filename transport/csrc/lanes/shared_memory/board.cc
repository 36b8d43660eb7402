#include "lanes/shared_memory/board.h"

#include <algorithm>
#include <cstring>

namespace hccl {

namespace {

// Header::kind of a post: the same payload for all, or one each, by a table.
enum Layout : uint16_t { for_all = 0, for_each = 1 };

// Of one reader, by local rank, at the begin of a post of layout `for_each`.
struct PostedPart {
  uint32_t offset;  // from the begin of the table
  uint32_t length;
  uint64_t size : 48;
  uint64_t scaled : 16;
};

constexpr size_t payload_alignment = 16;

// The fingerprint in an entry. A late reader may load it while the entry is overwritten for a later
// step: it is released after the owner's StepCounter, whose later load detects that.
auto said_in(RingEntry& entry) { return std::atomic_ref(entry.header.fingerprint); }

}  // namespace

Board::Board(std::shared_ptr<Segment> mine, int local_rank, int world_size,
             std::shared_ptr<Distance> distance, Statistics& statistics)
    : segment_(std::move(mine)),
      local_rank_(local_rank),
      distance_(std::move(distance)),
      statistics_(statistics),
      peers_(static_cast<size_t>(world_size)),
      used_in_(segment_->shape().num_post_buffers()) {
  messages_.reserve(static_cast<size_t>(world_size));
}

void Board::add_peer(int rank, int their_local_rank, std::shared_ptr<Segment> theirs,
                     std::shared_ptr<Doorbell> bell) {
  auto& peer = peers_[static_cast<size_t>(rank)];
  peer.reset(new Peer{rank, their_local_rank, std::move(theirs), std::move(bell)});
  local_peers_.push_back(peer.get());
}

bool Board::all_have_ended(uint64_t step) {
  if (ended_by_all_ >= step) return true;
  ended_by_all_ = step_;
  for (const Peer* peer : local_peers_) {
    uint64_t ended = peer->segment->steps_ended().load(std::memory_order_seq_cst);
    ended_by_all_ = std::min(ended_by_all_, ended);
  }
  return ended_by_all_ >= step;
}

std::vector<int> Board::behind() const {
  std::vector<int> ranks;
  for (const Peer* peer : local_peers_) {
    if (peer->segment->steps_ended().load(std::memory_order_seq_cst) < awaited_) {
      ranks.push_back(peer->rank);
    }
  }
  return ranks;
}

size_t Board::count_bytes() const {
  if (messages_.size() == 1) return messages_[0].header.length;
  size_t bytes = sizeof(PostedPart) * static_cast<size_t>(segment_->shape().num_local_ranks);
  for (const Message& message : messages_) {
    bytes += round_up(message.header.length, payload_alignment);
  }
  return bytes;
}

void Board::write(std::byte* to) {
  auto put = [this](std::byte* at, const Message& message) {
    const Header& header = message.header;
    if (header.length == 0) return;  // it may have no address
    distance_->copy_there(at, {message.payload, header.length});
  };
  if (messages_.size() == 1) return put(to, messages_[0]);
  auto* table = reinterpret_cast<PostedPart*>(to);
  size_t offset = sizeof(PostedPart) * static_cast<size_t>(segment_->shape().num_local_ranks);
  for (const Message& message : messages_) {
    const Header& header = message.header;
    for (int rank : message.peers) {
      if (!has(rank)) continue;
      table[peers_[static_cast<size_t>(rank)]->local_rank] = {
          static_cast<uint32_t>(offset), header.length, header.size, header.scaled};
    }
    put(to + offset, message);
    offset += round_up(header.length, payload_alignment);
  }
}

Board::Posted Board::post() {
  if (messages_.empty()) return Posted::whole;
  size_t bytes = count_bytes();
  bool takes_buffer = bytes > inline_bytes && bytes <= post_buffer_bytes;
  size_t buffer = next_buffer_;
  awaited_ = step_ > post_entries ? step_ - post_entries : 0;
  if (takes_buffer) awaited_ = std::max(awaited_, used_in_[buffer]);
  if (!all_have_ended(awaited_)) return Posted::no_room;
  RingEntry& entry = segment_->posts()[step_ % post_entries];
  entry.slot = bytes <= inline_bytes ? in_entry : by_lane;
  if (takes_buffer) {
    entry.slot = static_cast<int32_t>(buffer);
    used_in_[buffer] = step_;
    next_buffer_ = (buffer + 1) % used_in_.size();
  }
  const Header& header = messages_[0].header;
  said_in(entry).store(header.fingerprint, std::memory_order_release);
  entry.header.id = header.id;
  entry.header.size = header.size;
  entry.header.scaled = header.scaled;
  entry.header.length = header.length;
  entry.header.kind = messages_.size() == 1 ? for_all : for_each;
  if (entry.slot != by_lane) write(takes_buffer ? segment_->post_buffer(buffer) : entry.payload);
  entry.sequence.store(static_cast<uint32_t>(step_), std::memory_order_seq_cst);
  for (const Message& message : messages_) {
    for (int rank : message.peers) {
      if (!has(rank)) continue;
      peers_[static_cast<size_t>(rank)]->bell->message_posted();
      if (entry.slot == by_lane) continue;
      statistics_.shm.messages.add(1);
      statistics_.shm.bytes.add(message.header.length);
    }
  }
  return entry.slot == by_lane ? Posted::by_lane : Posted::whole;
}

// Ranks that make different calls may never read each other's messages, so a rank that reads again
// checks earlier steps. It has seen the post of this step, and so all earlier ones: relaxed.
bool Board::find_passed_over(Peer& peer) const {
  uint64_t oldest = step_ >= post_entries ? step_ - post_entries + 1 : 1;
  for (uint64_t step = std::max(peer.peeked + 1, oldest); step < step_; ++step) {
    RingEntry& entry = peer.segment->posts()[step % post_entries];
    if (entry.sequence.load(std::memory_order_relaxed) != static_cast<uint32_t>(step)) continue;
    uint64_t said = said_in(entry).load(std::memory_order_acquire);
    if (said == fingerprints_[step % post_entries]) continue;
    uint64_t ended = peer.segment->steps_ended().load(std::memory_order_relaxed);
    if (ended + 1 >= step + post_entries) continue;  // it may belong to a later step
    peer.header = {.fingerprint = said};
    peer.payload = entry.payload;  // it was not sent by lane
    return true;
  }
  return false;
}

const Header* Board::peek(int rank) {
  Peer& peer = *peers_[static_cast<size_t>(rank)];
  if (peer.peeked == step_) return &peer.header;
  const RingEntry& entry = peer.segment->posts()[step_ % post_entries];
  if (entry.sequence.load(std::memory_order_seq_cst) != static_cast<uint32_t>(step_))
    return nullptr;
  if (find_passed_over(peer)) return &peer.header;
  peer.header = entry.header;
  peer.payload = nullptr;
  int32_t place = entry.slot;
  if (place != by_lane) {
    bool in_buffer = place >= 0 && place < static_cast<int32_t>(used_in_.size());
    const std::byte* begin =
        in_buffer ? peer.segment->post_buffer(static_cast<size_t>(place)) : entry.payload;
    size_t room = in_buffer ? post_buffer_bytes : inline_bytes;
    size_t offset = 0;
    if (peer.header.kind == for_each) {
      size_t at = sizeof(PostedPart) * static_cast<size_t>(local_rank_);
      PostedPart entry{};
      if (at + sizeof entry <= room) std::memcpy(&entry, begin + at, sizeof entry);
      offset = entry.offset;
      peer.header.length = entry.length;
      peer.header.size = entry.size;
      peer.header.scaled = entry.scaled;
    }
    if ((!in_buffer && place != in_entry) || offset > room || peer.header.length > room - offset) {
      throw LaneError(rank, "a malformed message in shared memory");
    }
    peer.payload = begin + offset;
  }
  peer.peeked = step_;
  return &peer.header;
}

void Board::end_step(uint64_t fingerprint) {
  messages_.clear();
  fingerprints_[step_ % post_entries] = fingerprint;
  segment_->steps_ended().store(step_++, std::memory_order_seq_cst);
  for (Peer* peer : local_peers_) peer->bell->space_freed();
}

}  // namespace hccl
