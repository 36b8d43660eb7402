// The ops of a plan, run in a tile.
#include <algorithm>
#include <cstring>

#include "base/copy.h"
#include "engine/calls/request.h"
#include "engine/calls/timed.h"
#include "engine/collective/collective.h"
#include "reduce/reduce.h"

namespace hccl {

namespace {

Failure mismatch(int peer, uint64_t call, uint64_t their_call) {
  Failure failure = observed(Cause::mismatch, peer);
  failure.call = call;
  failure.their_call = their_call;
  return failure;
}

// A local copy of this size does not stay in a cache until it is read completely.
constexpr size_t min_uncached_bytes = 4 << 20;

}  // namespace

bool Channel::run(const Op& op) {
  if (op.kind != OpKind::send && !steps_->end_sends()) return false;
  switch (op.kind) {
    case OpKind::send: return run_send(op);
    case OpKind::recv: return run_recv(op);
    case OpKind::recv_reduce: return run_recv_reduce(op);
    case OpKind::copy: return run_copy(op);
  }
  return false;
}

Span Channel::resolve(const ChunkRef& chunk) {
  return tiling_->resolve(*call_, chunk, tile_, scratch_.data());
}

// By chunk from its first one: whether this rank has not written it yet. Null: of a
// call that does not read its input, and of other buffers.
uint8_t* Channel::unwritten_in(const ChunkRef& chunk) {
  if (!reads_input_ || chunk.buffer != Buffer::data || chunk.scratch >= 0) return nullptr;
  return &unwritten_[static_cast<size_t>(chunk.begin)];
}

// Where the elements of a chunk are: out of place, in the input until this rank writes them.
const std::byte* Channel::readable(const ChunkRef& chunk, const Span& span) {
  const uint8_t* unwritten = unwritten_in(chunk);
  if (unwritten == nullptr) return span.address;
  auto num_unwritten = std::count(unwritten, unwritten + (chunk.end - chunk.begin), 1);
  if (num_unwritten == chunk.end - chunk.begin) {
    return call_->source + (span.address - call_->data.address);
  }
  if (num_unwritten > 0) bring_input(chunk);
  return span.address;
}

// Copies from the input what this rank has not written.
void Channel::bring_input(const ChunkRef& chunk) {
  uint8_t* unwritten = unwritten_in(chunk);
  for (int i = chunk.begin; unwritten != nullptr && i < chunk.end; ++i, ++unwritten) {
    if (*unwritten != 0) copy_input(resolve({Buffer::data, i, i + 1}));
    *unwritten = 0;
  }
}

void Channel::note_written(const ChunkRef& chunk) {
  uint8_t* unwritten = unwritten_in(chunk);
  if (unwritten != nullptr) std::fill_n(unwritten, chunk.end - chunk.begin, uint8_t{0});
}

bool Channel::run_send(const Op& op) {
  Span span = resolve(op.source);
  if (!is_told(span)) return true;
  uint16_t scaled = 0;
  if (!scaled_groups(op.source, span, scaled)) return false;
  const std::byte* payload = readable(op.source, span);
  if (is_compressed(op, 0) && span.count > 0) {
    payload = encode_source(op, span);
    if (payload == nullptr) return false;
  }
  Header header;
  header.fingerprint = call_->fingerprint;
  header.id = stragglers_.report();
  header.size = Tiling::whole(*call_, op.source) * item_size_;
  header.scaled = scaled;
  header.length = static_cast<uint32_t>(message_bytes(op, 0, span));
  header.kind = static_cast<uint16_t>(op.rendezvous);
  // Messages on the board have no numbers.
  header.wants_reply = op.rendezvous > 0 && !is_on_board() && payload == span.address;
  header.is_only_moved = !call_->plan->reduces;
  header.sender_waits = sender_waits_;
  header.copy_mode = call_->copy_mode;
  return steps_->send(peers_of(op), header, payload);
}

// Encodes the source of a compressed send. To end with the same bits on all ranks, `data` then
// holds the values that its receivers decode. Null while an earlier send still reads it.
const std::byte* Channel::encode_source(const Op& op, const Span& span) {
  bool of_data = op.source.buffer == Buffer::data && op.source.scratch < 0;
  if (of_data && !may_overwrite(span)) return nullptr;
  std::byte* encoding = free_encoding();
  Timed timed(&coded_.coding_ns);
  std::byte* residual = nullptr;
  if (of_data && call_->residual) residual = call_->residual + (span.address - call_->data.address);
  encode(call_->compression, encoding, span.address, residual, span.count);
  if (of_data) decode(call_->compression, span.address, encoding, span.count);
  auto num_peers = static_cast<size_t>(op.num_peers);
  coded_.raw_bytes.add(num_peers * span.count * item_size_);
  coded_.sent_bytes.add(num_peers * encoded_bytes(call_->compression, span.count));
  return encoding;
}

void Channel::decode_payload(const std::byte* payload, std::byte* to, size_t count) {
  Timed timed(&coded_.coding_ns);
  decode(call_->compression, to, payload, count);
}

std::byte* Channel::free_encoding() {
  for (const auto& encoding : encodings_) {
    if (!over_lanes_.is_borrowed(encoding.get())) return encoding.get();
  }
  // At least one block, for the slot of a message of one element.
  size_t bytes = std::max(slot_bytes_, encoded_bytes(Compression::int8, int8_block));
  return encodings_.emplace_back(new std::byte[bytes]).get();
}

void Channel::look_for_strays(uint64_t fingerprint) {
  for (const auto& lane : lanes()) {
    if (!lane) continue;
    try {
      look_for_stray(lane->peer(), over_lanes_.peek(lane->peer()), fingerprint);
      look_for_stray(lane->peer(), over_board_.peek(lane->peer()), fingerprint);
    } catch (const LaneError&) {
      // a rank that needs that rank will fail
    }
  }
}

void Channel::look_for_stray(int peer, const Header* header, uint64_t fingerprint) {
  if (header == nullptr || header->fingerprint == fingerprint) return;
  // The low bits are the call's number.
  auto ahead = static_cast<int16_t>(header->fingerprint - fingerprint);
  if (ahead <= 0) throw Mismatch(mismatch(peer, fingerprint, header->fingerprint));
}

// Throws Mismatch, or LaneError for an invalid message.
void Channel::check(const Header& header, const Op& op, int peer_index, const Span& span) {
  int peer = peers_of(op)[static_cast<size_t>(peer_index)];
  if (checks_) {
    uint64_t call = call_->fingerprint;
    size_t whole = Tiling::whole(*call_, op.destination) * item_size_;
    if (header.fingerprint != call) throw Mismatch(mismatch(peer, call, header.fingerprint));
    if (header.size != whole) {
      Failure failure = mismatch(peer, call, 0);
      failure.sent_bytes = header.size;
      failure.expected_bytes = whole;
      throw Mismatch(std::move(failure));
    }
  }
  // Always: decoding reads this length.
  if (header.length != message_bytes(op, peer_index, span)) {
    throw LaneError(peer, "a message that is no part of its call");
  }
  stragglers_.arrive(peer, header.id);
}

bool Channel::run_recv(const Op& op) {
  Span span = resolve(op.destination);
  if (!is_told(span)) return true;
  int peer = peers_of(op)[0];
  const Header* header = steps_->peek(peer);
  if (header == nullptr) return false;
  check(*header, op, 0, span);
  if (!may_overwrite(span)) return false;
  uint16_t scaled = header->scaled;
  if (is_compressed(op, 0) && span.count > 0) {
    const std::byte* payload = steps_->lend(peer);
    if (payload == nullptr) return false;
    decode_payload(payload, span.address, span.count);
  } else if (span.count == 0 ? steps_->lend(peer) == nullptr
                             : !steps_->receive(peer, span.address)) {
    return false;  // an empty block may have no address
  }
  note_written(op.destination);
  note_scaled(op.destination, span, scaled);
  steps_->release(peer);
  return true;
}

bool Channel::run_recv_reduce(const Op& op) {
  Span span = resolve(op.destination);
  if (!is_told(span)) return true;
  std::span<const int> peers = peers_of(op);
  if (ready_ == 0) {
    given_scaled_ = 0;
    sources_.resize(static_cast<size_t>(op.num_peers));
    size_t decoded_bytes = slot_bytes_ * static_cast<size_t>(op.num_peers);
    if (call_->compression != Compression::none && decoded_.size() < decoded_bytes) {
      decoded_.resize(decoded_bytes);
    }
  }
  for (; ready_ < op.num_peers; ++ready_) {
    auto index = static_cast<size_t>(ready_);
    const Header* header = steps_->peek(peers[index]);
    if (header == nullptr) return false;
    check(*header, op, ready_, span);
    const std::byte* payload = steps_->lend(peers[index]);
    if (payload == nullptr) return false;
    given_scaled_ |= header->scaled;
    if (is_compressed(op, ready_) && span.count > 0) {
      std::byte* decoded = decoded_.data() + index * slot_bytes_;
      decode_payload(payload, decoded, span.count);
      payload = decoded;
    }
    sources_[index] = payload;
  }
  if (!may_overwrite(span)) return false;
  const ChunkRef& mine = op.source.is_given() ? op.source : op.destination;
  uint16_t mine_scaled = 0;
  if (!scaled_groups(mine, resolve(mine), mine_scaled)) return false;
  if (span.count > 0) {
    const std::byte* part =
        op.source.is_given() ? part_of(op, span) : readable(op.destination, span);
    // Rank order, so that every rank which reduces these same operands gets the same bits.
    sources_.insert(sources_.begin() + place_of_mine(peers), part);
    Timed timed(profile_, &Profile::reduce_ns);
    reduce_sources(op, span, mine_scaled);
    note_written(op.destination);
  }
  for (int peer : peers) steps_->release(peer);
  ready_ = 0;
  return true;
}

namespace {

void require_same_length(const Span& source, const Span& destination) {
  if (source.count == destination.count) return;
  throw std::logic_error("a plan copies between chunks of different lengths");
}

bool overlap(const Span& a, const Span& b, size_t item_size) {
  return a.address < b.address + b.count * item_size && b.address < a.address + a.count * item_size;
}

}  // namespace

// Returns this rank's part of a reduction into `destination`. Where the caller's buffers overlap,
// the part is moved there.
const std::byte* Channel::part_of(const Op& op, const Span& destination) {
  Span source = resolve(op.source);
  require_same_length(source, destination);
  const std::byte* part = readable(op.source, source);
  if (part != source.address) return part;
  if (!overlap(source, destination, item_size_)) return source.address;
  std::memmove(destination.address, source.address, source.count * item_size_);
  return destination.address;
}

bool Channel::run_copy(const Op& op) {
  Span destination = resolve(op.destination);
  Span source = resolve(op.source);
  require_same_length(source, destination);
  if (source.count == 0 || source.address == destination.address) return true;
  if (!may_overwrite(destination)) return false;
  bring_input(op.source);
  note_written(op.destination);
  Timed timed(profile_, &Profile::copy_ns);
  size_t num_bytes = source.count * item_size_;
  move_scaled(source.address, destination.address, num_bytes);
  if (overlap(source, destination, item_size_)) {
    std::memmove(destination.address, source.address, num_bytes);
  } else if (Tiling::whole(*call_, op.source) * item_size_ >= min_uncached_bytes) {
    copy_past_caches(destination.address, source.address, num_bytes);
  } else {
    hccl::copy(destination.address, source.address, num_bytes);
  }
  return true;
}

}  // namespace hccl
