#include "engine/in_place.h"

#include <algorithm>
#include <cstring>

#include "engine/collective.h"
#include "reduce/reduce.h"

namespace hccl {

namespace {

// Below, a message through the peer's cache is as fast as its memory, and the closing round costs.
constexpr size_t min_bytes = size_t{256} << 10;
// What a step moves at most, so that a deadline, an abort or Ctrl-C is seen in time.
constexpr size_t piece_bytes = size_t{1} << 20;
// Blocks of all sources together stay in the L2 cache between the reduction and the copies.
constexpr size_t reduce_bytes = size_t{256} << 10;
constexpr size_t max_reduce_block = size_t{32} << 10;
// Long enough to copy fast, too short for memcpy to go round the caches.
constexpr size_t copy_block = size_t{64} << 10;
constexpr size_t page = 4096;  // all element sizes divide it

constexpr uint16_t kind_announce = 1;
constexpr uint16_t kind_done = 2;

}  // namespace

InPlace::InPlace(int rank, std::vector<std::unique_ptr<Lane>>& lanes,
                 const std::vector<std::shared_ptr<Segment>>& segments,
                 std::shared_ptr<Arena> arena, Lateness& lateness)
    : rank_(rank),
      world_size_(static_cast<int>(lanes.size())),
      lanes_(lanes),
      segments_(segments),
      arena_(std::move(arena)),
      lateness_(lateness),
      windows_(lanes.size()),
      told_(lanes.size()),
      heard_(lanes.size()) {
  // Nothing grows later.
  backlog_.reserve(lanes.size());
  moves_.resize(lanes.size());
  for (Move& move : moves_) {
    move.sources.reserve(lanes.size());
    move.destinations.reserve(lanes.size());
  }
  block_sources_.reserve(lanes.size());
  if (arena_) set_window(rank, arena_->window());
}

void InPlace::set_window(int peer, std::shared_ptr<ArenaWindow> theirs) {
  windows_.at(static_cast<size_t>(peer)) = std::move(theirs);
}

bool InPlace::wants(const Call& call) {
  if (call.total_bytes < min_bytes) return false;
  switch (call.collective) {
    case Collective::all_reduce:
    case Collective::broadcast:
    case Collective::all_gather:
    case Collective::reduce_scatter: return true;
    case Collective::other: return false;
  }
  return false;
}

// ---------------------------------------------------------------- announcing

void InPlace::begin(const Call& call) {
  call_ = &call;
  item_size_ = size_of(call.dtype);
  state_ = State::announcing;
  next_peer_ = 0;
  num_moves_ = current_ = done_ = 0;
  announce();
}

// What of mine rank `peer` may have to read.
InPlace::Lent InPlace::lent_source(int peer) const {
  Block block;
  switch (call_->collective) {
    case Collective::all_reduce:
    case Collective::broadcast: block = call_->data; break;
    case Collective::all_gather: block = call_->input.at(0); break;
    case Collective::reduce_scatter: block = call_->input.at(static_cast<size_t>(peer)); break;
    case Collective::other: break;
  }
  return {block.address, block.count * item_size_};
}

// Where rank `peer` may have to write. In a reduce_scatter nobody does, but the size is compared.
InPlace::Lent InPlace::lent_destination(int peer) const {
  if (call_->collective != Collective::all_gather) return lent_source(peer);
  const Block& block = call_->output.at(static_cast<size_t>(peer));
  return {block.address, block.count * item_size_};
}

bool InPlace::has_all_windows() const {
  return std::all_of(windows_.begin(), windows_.end(),
                     [](const auto& window) { return window != nullptr; });
}

void InPlace::announce() {
  uint32_t readable = has_all_windows(), writable = readable;
  auto offset_of = [this](const Lent& lent, uint32_t& flag) {
    if (flag == 0 || lent.num_bytes == 0) return uint64_t{0};
    std::optional<uint64_t> found = arena_->offset_of(lent.address, lent.num_bytes);
    if (!found) flag = 0;
    return found.value_or(0);
  };
  bool of_blocks = call_->collective == Collective::all_gather ||
                   call_->collective == Collective::reduce_scatter;
  for (int peer = 0; peer < world_size_; ++peer) {
    if (peer == rank_ && of_blocks) continue;  // my own block stays with me
    Announcement& told = told_[static_cast<size_t>(peer)];
    Lent source = lent_source(peer), destination = lent_destination(peer);
    told.source = offset_of(source, readable);
    told.source_bytes = source.num_bytes;
    told.destination = offset_of(destination, writable);
    told.destination_bytes = destination.num_bytes;
  }
  for (int peer = 0; peer < world_size_; ++peer) {
    Announcement& told = told_[static_cast<size_t>(peer)];
    told.readable = readable;
    told.writable = writable;
    if (peer != rank_) post(peer, kind_announce, &told);
  }
  heard_[static_cast<size_t>(rank_)] = told_[static_cast<size_t>(rank_)];
}

void InPlace::post(int peer, uint16_t kind, const Announcement* announcement) {
  Header header;
  header.fingerprint = call_->fingerprint;
  header.id = lateness_.told();
  header.kind = kind;
  if (announcement != nullptr) header.length = sizeof *announcement;
  Lane& lane = *lanes_[static_cast<size_t>(peer)];
  lane.post_send(header, reinterpret_cast<const std::byte*>(announcement));
  backlog_.note(lane);
}

// Takes one message of every peer, in rank order. True if any came.
bool InPlace::hear(uint16_t kind) {
  bool moved = false;
  for (; next_peer_ < world_size_; ++next_peer_) {
    if (next_peer_ == rank_) continue;
    Lane& lane = *lanes_[static_cast<size_t>(next_peer_)];
    const Header* header = lane.peek();
    if (header == nullptr) return moved;
    if (header->fingerprint != call_->fingerprint) {
      throw Mismatch(next_peer_, call_->fingerprint, header->fingerprint);
    }
    lateness_.heard(next_peer_, header->id);
    size_t length = kind == kind_announce ? sizeof(Announcement) : 0;
    if (header->kind != kind || header->length != length) {
      throw LaneError(next_peer_, "a malformed message about registered memory");
    }
    if (kind == kind_announce) {
      Announcement announcement;
      if (!lane.receive(reinterpret_cast<std::byte*>(&announcement))) return moved;
      take(next_peer_, announcement);
    }
    lane.release();
    moved = true;
  }
  return moved;
}

void InPlace::take(int peer, const Announcement& announcement) {
  size_t index = static_cast<size_t>(peer);
  // In all_gather blocks may differ in length: theirs must fit mine, and mine theirs.
  size_t expected = lent_destination(peer).num_bytes, room = lent_source(peer).num_bytes;
  if (announcement.source_bytes != expected || announcement.destination_bytes != room) {
    if (announcement.source_bytes != expected) {
      throw Mismatch(peer, call_->fingerprint, announcement.source_bytes, expected);
    }
    throw Mismatch(peer, call_->fingerprint, room, announcement.destination_bytes);
  }
  heard_[index] = announcement;
}

bool InPlace::all(uint32_t Announcement::* flag) const {
  return std::all_of(heard_.begin(), heard_.end(),
                     [flag](const Announcement& one) { return one.*flag != 0; });
}

// ---------------------------------------------------------------- who does what

void InPlace::decide() {
  bool readable = all(&Announcement::readable), writable = all(&Announcement::writable);
  bool possible = readable;
  switch (call_->collective) {
    case Collective::all_reduce:
      if (readable) reduce_everywhere();
      break;
    case Collective::broadcast:
      if (readable) copy_from_root();
      break;
    case Collective::reduce_scatter:
      if (readable) reduce_to_mine();
      break;
    case Collective::all_gather:
      possible = readable || writable;
      // Giving reads every input once, taking reads it once per rank.
      if (writable) {
        give_to_all();
      } else if (readable) {
        take_from_all();
      }
      break;
    case Collective::other: possible = false; break;
  }
  state_ = possible ? State::working : State::declined;
}

InPlace::Move& InPlace::add_move(size_t count) {
  Move& move = moves_[num_moves_++];
  move.sources.clear();
  move.destinations.clear();
  move.count = count;
  return move;
}

std::byte* InPlace::lent_by(int peer, uint64_t offset, uint64_t num_bytes) const {
  std::byte* address = windows_[static_cast<size_t>(peer)]->at(offset, num_bytes);
  if (address == nullptr) throw LaneError(peer, "it lent memory outside of what it registered");
  return address;
}

// Where my share of `count` elements begins, or that of the next rank: at the bound of a page.
size_t InPlace::share_begin(size_t count, int rank) const {
  if (rank == world_size_) return count;
  return partition(count, world_size_, rank) * item_size_ / page * page / item_size_;
}

// Every rank reduces its share of all buffers and writes the result into all of them.
void InPlace::reduce_everywhere() {
  size_t count = call_->data.count, begin = share_begin(count, rank_);
  Move& move = add_move(share_begin(count, rank_ + 1) - begin);
  for (int rank = 0; rank < world_size_; ++rank) {
    const Announcement& heard = heard_[static_cast<size_t>(rank)];
    std::byte* data = lent_by(rank, heard.source, count * item_size_) + begin * item_size_;
    move.sources.push_back(data);
    move.destinations.push_back(data);
  }
  // Reduced into my own buffer first.
  std::swap(move.destinations[0], move.destinations[static_cast<size_t>(rank_)]);
}

// Every rank, the root too, copies its share of the root's buffer into all others.
void InPlace::copy_from_root() {
  size_t count = call_->data.count, begin = share_begin(count, rank_);
  Move& move = add_move(share_begin(count, rank_ + 1) - begin);
  for (int rank = 0; rank < world_size_; ++rank) {
    const Announcement& heard = heard_[static_cast<size_t>(rank)];
    std::byte* data = lent_by(rank, heard.destination, count * item_size_) + begin * item_size_;
    if (rank == call_->root) {
      move.sources.push_back(data);
    } else {
      move.destinations.push_back(data);
    }
  }
}

// Every rank writes its input into all outputs.
void InPlace::give_to_all() {
  const Block& input = call_->input.at(0);
  Move& move = add_move(input.count);
  move.sources.push_back(input.address);
  for (int rank = 0; rank < world_size_; ++rank) {
    const Announcement& heard = heard_[static_cast<size_t>(rank)];
    move.destinations.push_back(rank == rank_
                                    ? call_->output.at(static_cast<size_t>(rank)).address
                                    : lent_by(rank, heard.destination, input.count * item_size_));
  }
}

// Every rank reads all inputs into its own output.
void InPlace::take_from_all() {
  for (int rank = 0; rank < world_size_; ++rank) {
    const Announcement& heard = heard_[static_cast<size_t>(rank)];
    const Block& block = call_->output.at(static_cast<size_t>(rank));
    Move& move = add_move(block.count);
    move.destinations.push_back(block.address);
    move.sources.push_back(rank == rank_ ? call_->input.at(0).address
                                         : lent_by(rank, heard.source, block.count * item_size_));
  }
}

// Every rank reduces its block of all inputs into its own output.
void InPlace::reduce_to_mine() {
  const Block& output = call_->output.at(0);
  Move& move = add_move(output.count);
  move.destinations.push_back(output.address);
  for (int rank = 0; rank < world_size_; ++rank) {
    const Announcement& heard = heard_[static_cast<size_t>(rank)];
    move.sources.push_back(rank == rank_ ? call_->input.at(static_cast<size_t>(rank)).address
                                         : lent_by(rank, heard.source, output.count * item_size_));
  }
}

// ---------------------------------------------------------------- working

// One piece. False if there is none left.
bool InPlace::work() {
  while (current_ < num_moves_ && done_ == moves_[current_].count) {
    ++current_;
    done_ = 0;
  }
  if (current_ == num_moves_) return false;
  const Move& move = moves_[current_];
  size_t num_sources = move.sources.size();
  size_t block = num_sources == 1 ? copy_block
                                  : std::clamp(reduce_bytes / num_sources / page * page, page,
                                               max_reduce_block);
  size_t width = std::max(num_sources, move.destinations.size());
  size_t end = done_ + std::max(piece_bytes / width, block) / item_size_;
  for (end = std::min(end, move.count); done_ < end;) {
    size_t count = std::min(block / item_size_, end - done_);
    run(move, done_, count);
    done_ += count;
  }
  return true;
}

void InPlace::run(const Move& move, size_t begin, size_t count) {
  size_t at = begin * item_size_, num_bytes = count * item_size_;
  const std::byte* from = move.sources[0] + at;
  auto copies = move.destinations.begin();
  if (move.sources.size() > 1) {
    std::byte* first = *copies++ + at;
    block_sources_.clear();
    for (const std::byte* source : move.sources) block_sources_.push_back(source + at);
    reduce(call_->dtype, call_->op, first, block_sources_, count);
    if (call_->divide_data || call_->divide_output) {
      scale(call_->dtype, first, count, world_size_);
    }
    from = first;
  }
  for (; copies != move.destinations.end(); ++copies) {
    if (*copies + at != from) std::memcpy(*copies + at, from, num_bytes);
  }
}

bool InPlace::step() {
  bool moved = backlog_.flush();
  switch (state_) {
    case State::announcing:
      moved |= hear(kind_announce);
      if (next_peer_ < world_size_ || !backlog_.empty()) return moved;
      decide();
      return true;
    case State::working:
      if (work()) return true;
      for (int peer = 0; peer < world_size_; ++peer) {
        if (peer != rank_) post(peer, kind_done, nullptr);
      }
      next_peer_ = 0;
      state_ = State::closing;
      return true;
    case State::closing:
      moved |= hear(kind_done);
      if (next_peer_ < world_size_ || !backlog_.empty()) return moved;
      // The rank that has withdrawn says why on its control link, and that ends this call.
      if (!is_valid()) return moved;
      state_ = State::finished;
      return true;
    case State::idle:
    case State::declined:
    case State::finished: break;
  }
  return moved;
}

// What others made of a withdrawn buffer counts too: their last messages came after their reads.
bool InPlace::is_valid() const {
  return std::none_of(segments_.begin(), segments_.end(),
                      [](const auto& segment) { return segment->is_withdrawn(); });
}

void InPlace::abandon() {
  backlog_.clear();
  if (state_ != State::idle) {
    for (int peer = 0; peer < world_size_; ++peer) {
      const Announcement& told = told_[static_cast<size_t>(peer)];
      if (peer == rank_ || !told.writable || told.destination_bytes == 0) continue;
      arena_->retire(told.destination);
    }
  }
  state_ = State::idle;
}

// ---------------------------------------------------------------- for messages

Stage InPlace::stage() const {
  switch (state_) {
    case State::announcing: return {"exchange_addresses", 1, 3, 0, 0};
    case State::closing: return {"release_addresses", 3, 3, 0, 0};
    case State::idle:
    case State::working:
    case State::declined:
    case State::finished: break;
  }
  return {"move", 2, 3, 0, 0};
}

std::vector<int> InPlace::waiting_for() const {
  std::vector<int> ranks;
  if (state_ != State::announcing && state_ != State::closing) return ranks;
  for (int peer = next_peer_; peer < world_size_; ++peer) {
    if (peer == rank_) continue;
    try {
      if (lanes_[static_cast<size_t>(peer)]->peek() != nullptr) continue;
    } catch (const LaneError&) {
    }
    ranks.push_back(peer);
  }
  return ranks;
}

}  // namespace hccl
