// The steps of an average besides the sum; collective.h gives the reason.
#include <algorithm>
#include <bit>
#include <cmath>

#include "engine/collective/collective.h"

namespace hccl {

namespace {

// The k of collective.h.
int shift_among(int world_size) { return std::bit_width(static_cast<unsigned>(world_size)); }

}  // namespace

Channel::Group Channel::group_of(const ChunkRef& chunk, const Span& span, int number) const {
  int num_chunks = chunk.end - chunk.begin, groups = num_groups(chunk);
  auto offset = [&](int end_of) -> size_t {
    int chunks = end_of * num_chunks / groups;
    if (chunks == num_chunks) return span.count;
    if (chunk.buffer != Buffer::data) {  // blocks of one length
      return span.count / static_cast<size_t>(num_chunks) * static_cast<size_t>(chunks);
    }
    size_t tile = tiling_->tile_of(call_->data, tile_).count;
    return partition(tile, call_->plan->data_chunks, chunk.begin + chunks) -
           partition(tile, call_->plan->data_chunks, chunk.begin);
  };
  return {number, offset(number), offset(number + 1)};
}

void Channel::scale_down(std::byte* begin, size_t count) {
  multiply(call_->dtype, begin, begin, count, std::ldexp(1, -shift_among(world_size_)));
}

// The scaled groups of a message to send. Only with more than 16 chunks can a group be partly
// scaled, and then all of it is scaled. False while an earlier send still reads it.
bool Channel::scaled_groups(const ChunkRef& chunk, const Span& span, uint16_t& groups) {
  if (scaled_.empty()) return true;
  for (int number = 0; number < num_groups(chunk); ++number) {
    Group group = group_of(chunk, span, number);
    std::byte* begin = span.address + group.begin * item_size_;
    std::byte* end = span.address + group.end * item_size_;
    if (!scaled_.any(begin, end)) continue;
    groups |= static_cast<uint16_t>(1 << number);
    std::vector<Span> others;
    scaled_.visit_parts(begin, end, [&](std::byte* from, std::byte* to, bool is_scaled) {
      if (!is_scaled) others.push_back({from, static_cast<size_t>(to - from) / item_size_});
    });
    for (const Span& other : others) {
      if (!may_overwrite(other)) return false;
      scale_down(other.address, other.count);
      scaled_.set(other.address, other.address + other.count * item_size_, true);
    }
  }
  return true;
}

void Channel::note_scaled(const ChunkRef& chunk, const Span& span, uint16_t groups) {
  if (scaled_.empty() && groups == 0) return;
  for (int number = 0; number < num_groups(chunk); ++number) {
    Group group = group_of(chunk, span, number);
    scaled_.set(span.address + group.begin * item_size_, span.address + group.end * item_size_,
                (groups >> number & 1) != 0);
  }
}

// Copies elements.
void Channel::move_scaled(std::byte* from, std::byte* to, size_t num_bytes) {
  if (scaled_.empty()) return;
  std::vector<Span> found;
  scaled_.visit_parts(from, from + num_bytes,
                      [&](std::byte* begin, std::byte* end, bool is_scaled) {
                        if (is_scaled)
                          found.push_back({to + (begin - from), static_cast<size_t>(end - begin)});
                      });
  scaled_.set(to, to + num_bytes, false);
  for (const Span& part : found) scaled_.set(part.address, part.address + part.count, true);
}

// Reduces `sources_` into `span`. `mine_scaled`: of this rank's part, which groups are.
void Channel::reduce_sources(const Op& op, const Span& span, uint16_t mine_scaled) {
  size_t done = 0;
  if ((given_scaled_ | mine_scaled) == 0) {
    done = reduce(call_->dtype, call_->op, span.address, sources_, span.count);
    if (done == span.count) return note_scaled(op.destination, span, 0);
  }
  uint16_t scaled = 0;
  for (int number = 0; number < num_groups(op.destination); ++number) {
    Group group = group_of(op.destination, span, number);
    bool mine = (mine_scaled >> number & 1) != 0;
    bool is_scaled = done < group.end && !reduce_group(op, span, group, mine, done);
    scaled |= static_cast<uint16_t>(is_scaled << number);
  }
  note_scaled(op.destination, span, scaled);
}

// Reduces a group from element `done` of the message on. False: the sum is scaled down.
bool Channel::reduce_group(const Op& op, const Span& span, const Group& group, bool mine_is_scaled,
                           size_t done) {
  size_t next = std::max(group.begin, done), offset = next * item_size_;
  std::span<const int> peers = peers_of(op);
  std::vector<const std::byte*> sources;
  for (const std::byte* source : sources_) sources.push_back(source + offset);
  std::vector<bool> is_scaled;
  for (int peer : peers) is_scaled.push_back((steps_->peek(peer)->scaled >> group.number & 1) != 0);
  is_scaled.insert(is_scaled.begin() + place_of_mine(peers), mine_is_scaled);
  bool has_scaled = std::find(is_scaled.begin(), is_scaled.end(), true) != is_scaled.end();
  if (next == group.begin && !has_scaled) {
    next += reduce(call_->dtype, call_->op, span.address + offset, sources, group.end - next);
    if (next == group.end) return true;
  }
  scale_down(span.address + group.begin * item_size_, next - group.begin);
  size_t skipped = next * item_size_ - offset, rest = group.end - next;
  scaled_sources_.resize(sources.size() * rest * item_size_);
  std::byte* copy = scaled_sources_.data();
  for (size_t i = 0; i < sources.size(); ++i) {
    sources[i] += skipped;
    if (is_scaled[i]) continue;
    multiply(call_->dtype, copy, sources[i], rest, std::ldexp(1, -shift_among(world_size_)));
    sources[i] = copy;
    copy += rest * item_size_;
  }
  std::byte* to = span.address + next * item_size_;
  (void)reduce(call_->dtype, ReduceOp::sum, to, sources, rest);  // a sum reduces all
  return false;
}

// Divides the sums of a tile.
void Channel::divide(const Span& span) {
  std::byte* end = span.address + span.count * item_size_;
  scaled_.visit_parts(span.address, end, [&](std::byte* from, std::byte* to, bool is_scaled) {
    double divisor = std::ldexp(world_size_, is_scaled ? -shift_among(world_size_) : 0);
    scale(call_->dtype, from, static_cast<size_t>(to - from) / item_size_, divisor);
  });
  scaled_.set(span.address, end, false);
}

}  // namespace hccl
