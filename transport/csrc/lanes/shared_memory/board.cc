#include "lanes/shared_memory/board.h"

#include <algorithm>
#include <cstring>

namespace hccl {

namespace {

// Header::kind of a post: the same payload for everybody, or one each, as a table says.
enum Layout : uint16_t { for_all = 0, for_each = 1 };

// Of one reader, by local rank, at the begin of a post of layout `for_each`.
struct Entry {
  uint32_t offset;  // from the begin of the table
  uint32_t length;
  uint64_t size : 48;
  uint64_t scaled : 16;
};

constexpr size_t payload_alignment = 16;

// The fingerprint in a cell. A reader that looks back may load it while the cell is written again
// for a later step: released after the owner's StepCounter, whose load after this one tells.
std::atomic_ref<uint64_t> said_in(Cell& cell) { return std::atomic_ref(cell.header.fingerprint); }

}  // namespace

Board::Board(std::shared_ptr<Segment> mine, int local_rank, int world_size,
             std::shared_ptr<Distance> distance, Statistics& statistics)
    : segment_(std::move(mine)),
      local_rank_(local_rank),
      distance_(std::move(distance)),
      statistics_(statistics),
      peers_(static_cast<size_t>(world_size)) {
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
  size_t bytes = sizeof(Entry) * static_cast<size_t>(segment_->shape().num_local_ranks);
  for (const Message& message : messages_) {
    bytes += round_up(message.header.length, payload_alignment);
  }
  return bytes;
}

void Board::write(std::byte* to) {
  auto put = [this](std::byte* at, const Message& message) {
    const Header& header = message.header;
    if (header.length == 0) return;  // it may have no address
    distance_->copy_there(at, {message.payload, header.length}, header.copy_mode);
  };
  if (messages_.size() == 1) return put(to, messages_[0]);
  auto* table = reinterpret_cast<Entry*>(to);
  size_t offset = sizeof(Entry) * static_cast<size_t>(segment_->shape().num_local_ranks);
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
  bool takes_area = bytes > inline_bytes && bytes <= area_bytes;
  size_t area = next_area_;
  awaited_ = step_ > post_cells ? step_ - post_cells : 0;
  if (takes_area) awaited_ = std::max(awaited_, used_in_[area]);
  if (!all_have_ended(awaited_)) return Posted::no_room;
  Cell& cell = segment_->posts()[step_ % post_cells];
  cell.slot = bytes <= inline_bytes ? in_cell : by_lane;
  if (takes_area) {
    cell.slot = static_cast<int32_t>(area);
    used_in_[area] = step_;
    next_area_ = (area + 1) % post_areas;
  }
  const Header& header = messages_[0].header;
  said_in(cell).store(header.fingerprint, std::memory_order_release);
  cell.header.id = header.id;
  cell.header.size = header.size;
  cell.header.scaled = header.scaled;
  cell.header.length = header.length;
  cell.header.kind = messages_.size() == 1 ? for_all : for_each;
  if (cell.slot != by_lane) write(takes_area ? segment_->area(area) : cell.payload);
  cell.sequence.store(static_cast<uint32_t>(step_), std::memory_order_seq_cst);
  for (const Message& message : messages_) {
    for (int rank : message.peers) {
      if (!has(rank)) continue;
      peers_[static_cast<size_t>(rank)]->bell->message_posted();
      if (cell.slot == by_lane) continue;
      statistics_.shm.messages.add(1);
      statistics_.shm.bytes.add(message.header.length);
    }
  }
  return cell.slot == by_lane ? Posted::by_lane : Posted::whole;
}

// Ranks that make different calls may never read what the others send; so who reads again looks
// back.
bool Board::find_passed_over(Peer& peer) const {
  uint64_t oldest = step_ >= post_cells ? step_ - post_cells + 1 : 1;
  for (uint64_t step = std::max(peer.peeked + 1, oldest); step < step_; ++step) {
    Cell& cell = peer.segment->posts()[step % post_cells];
    if (cell.sequence.load(std::memory_order_seq_cst) != static_cast<uint32_t>(step)) continue;
    uint64_t said = said_in(cell).load(std::memory_order_acquire);
    if (said == fingerprints_[step % post_cells]) continue;
    uint64_t ended = peer.segment->steps_ended().load(std::memory_order_seq_cst);
    if (ended + 1 >= step + post_cells) continue;  // it may have been of a later step
    peer.header = {.fingerprint = said};
    peer.payload = cell.payload;  // it did not come by lane
    return true;
  }
  return false;
}

const Header* Board::peek(int rank) {
  Peer& peer = *peers_[static_cast<size_t>(rank)];
  if (peer.peeked == step_) return &peer.header;
  const Cell& cell = peer.segment->posts()[step_ % post_cells];
  if (cell.sequence.load(std::memory_order_seq_cst) != static_cast<uint32_t>(step_)) return nullptr;
  if (find_passed_over(peer)) return &peer.header;
  peer.header = cell.header;
  peer.payload = nullptr;
  int32_t place = cell.slot;
  if (place != by_lane) {
    bool in_area = place >= 0 && place < static_cast<int32_t>(post_areas);
    const std::byte* begin =
        in_area ? peer.segment->area(static_cast<size_t>(place)) : cell.payload;
    size_t room = in_area ? area_bytes : inline_bytes;
    size_t offset = 0;
    if (peer.header.kind == for_each) {
      size_t at = sizeof(Entry) * static_cast<size_t>(local_rank_);
      Entry entry{};
      if (at + sizeof entry <= room) std::memcpy(&entry, begin + at, sizeof entry);
      offset = entry.offset;
      peer.header.length = entry.length;
      peer.header.size = entry.size;
      peer.header.scaled = entry.scaled;
    }
    if ((!in_area && place != in_cell) || offset > room || peer.header.length > room - offset) {
      throw LaneError(rank, "a malformed message in shared memory");
    }
    peer.payload = begin + offset;
  }
  peer.peeked = step_;
  return &peer.header;
}

void Board::end_step(uint64_t fingerprint) {
  messages_.clear();
  fingerprints_[step_ % post_cells] = fingerprint;
  segment_->steps_ended().store(step_++, std::memory_order_seq_cst);
  for (Peer* peer : local_peers_) peer->bell->space_freed();
}

}  // namespace hccl
