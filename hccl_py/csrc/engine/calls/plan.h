// A lowered plan and its buffers: only this file turns chunks into addresses.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/types.h"
#include "lanes/lane.h"

namespace hccl {

enum class OpKind : uint8_t { send = 0, recv = 1, recv_reduce = 2, copy = 3 };
inline constexpr const char* op_names[] = {"send", "recv", "recv_reduce", "copy"};
enum class Buffer : uint8_t { data = 0, input = 1, output = 2 };

// Chunks [begin, end) of a buffer; or scratch with the length of these, from slot `scratch` on.
// Chunks of `data` take one slot together. Blocks take a slot each; several in a row, which exist
// only in scratch, have one length and are contiguous, and are not cut into parts.
struct ChunkRef {
  Buffer buffer = Buffer::data;
  int begin = 0;
  int end = 0;
  int scratch = -1;

  bool is_given() const { return end > begin; }
  bool operator==(const ChunkRef&) const = default;
};

struct Op {
  OpKind kind;
  int peers_begin;
  int num_peers;
  ChunkRef destination;
  // Of a recv_reduce: this rank's part, if it is not in the destination already.
  ChunkRef source;
  // Of a send: -1: copied; 0: may be announced; k: the k-th next message of the peer may be written
  // to the source.
  int rendezvous = 0;

  bool operator==(const Op&) const = default;
};

struct Plan {
  std::vector<Op> ops;
  std::vector<int> peers;
  // For each of `peers`, whether its message is compressed; empty: none.
  std::vector<uint8_t> compressed;
  // Ends of its steps, as numbers of ops; empty: none. A message that is sent in a step is
  // received in the same step, and the ranks of a node take the same steps.
  std::vector<int> steps;
  int data_chunks = 0;  // parts that `data` is cut into; 0: the plan has no `data`
  int block_parts = 1;  // chunks of each block; chunk i is a part of block i / block_parts
  int scratch_slots = 0;
  int max_chunk_span = 1;  // most chunks that one op moves; above 1, all blocks have one length
  // Smaller messages are not cut for more channels.
  size_t min_message_bytes = 16384;
  // Each message is a block, or all of `data`, that its receiver neither reduces nor passes on:
  // between lanes that take long messages it need not fit a slot.
  bool long_messages = false;
  bool reduces = true;  // some rank reduces what it receives

  bool operator==(const Plan&) const = default;
  // Throws std::invalid_argument where an op points outside its buffers or `world_size`.
  void validate(int rank, int world_size) const;
  bool is_compressed(const Op& op, int peer) const {
    return !compressed.empty() && compressed[static_cast<size_t>(op.peers_begin + peer)] != 0;
  }
  // Number of the engine's slots for scratch: blocks that share a message share a slot.
  size_t slots_needed() const;
  // Whether this rank neither receives nor copies, and so waits for its readers.
  bool only_sends() const;
};

// Contiguous elements.
struct Span {
  std::byte* address = nullptr;
  size_t count = 0;

  bool operator==(const Span&) const = default;
};

// The data of one collective besides its plan.
struct Call {
  const Plan* plan = nullptr;
  Span data;
  // Out of place: what `data` holds until the call writes it. Only read. Null: in place.
  const std::byte* source = nullptr;
  std::vector<Span> input;   // one per rank, or one
  std::vector<Span> output;  // one per rank, or one
  DType dtype = DType::uint8;
  ReduceOp op = ReduceOp::sum;
  // The encoding of float32 on the plan's compressed edges; none: no edge is compressed.
  Compression compression = Compression::none;
  // The error of compressing `data` in the call before, then in this one, by position; null without
  // error feedback.
  std::byte* residual = nullptr;
  uint64_t fingerprint = 0;
  size_t total_bytes = 0;                 // total, the same on all ranks; 0: blocks may differ
  CopyMode copy_mode = CopyMode::cached;  // of its payloads
  bool divide = false;  // avg: at the end `data`, or output block 0, by the number of ranks

  // The total, or else this rank's input or output.
  size_t num_bytes() const { return total_bytes != 0 ? total_bytes : num_block_bytes(); }
  size_t num_block_bytes() const;
  const Span& block_of(const ChunkRef& chunk) const {
    int parts = plan->block_parts, block = parts == 1 ? chunk.begin : chunk.begin / parts;
    return (chunk.buffer == Buffer::input ? input : output).at(static_cast<size_t>(block));
  }
};

// Begin of part i of `count` elements in `parts` parts: the first count % parts parts are one
// element longer.
constexpr size_t partition(size_t count, int parts, int i) {
  size_t p = static_cast<size_t>(parts), k = static_cast<size_t>(i);
  return k * (count / p) + (k < count % p ? k : count % p);
}

// Cuts a call into tiles such that no message of a tile is longer than a slot, and resolves
// chunks of a tile. Every rank computes the same tiles.
class Tiling {
 public:
  Tiling() = default;
  Tiling(const Call& call, size_t slot_bytes, int num_channels);

  int64_t num_tiles() const { return num_tiles_; }
  // Whether these are the tiles of a call with the same plan. Cutting takes several divisions, a
  // tenth of a small call.
  bool fits(const Call& call) const {
    return call.plan->data_chunks > 0 && num_tiles_ > 0 && count_ == call.data.count &&
           item_size_ == size_of(call.dtype);
  }
  // The elements of a chunk in a tile. `scratch`: base of this channel's scratch slots.
  Span resolve(const Call& call, const ChunkRef& chunk, int64_t tile, std::byte* scratch) const {
    Span span;
    int parts = call.plan->block_parts;
    if (chunk.buffer == Buffer::data) {
      span = cut(tile_of(call.data, tile), call.plan->data_chunks, chunk.begin, chunk.end);
    } else {
      span = tile_of(call.block_of(chunk), tile);
      if (parts > 1) span = cut(span, parts, chunk.begin % parts, chunk.begin % parts + 1);
    }
    if (chunk.scratch >= 0) {
      bool end_to_end = chunk.buffer != Buffer::data && call.plan->max_chunk_span > 1;
      size_t stride = end_to_end ? span.count * item_size_ : slot_bytes_;
      span.address = scratch + static_cast<size_t>(chunk.scratch) * stride;
      if (end_to_end) span.count *= static_cast<size_t>(chunk.end - chunk.begin);
    }
    return span;
  }
  Span tile_of(const Span& block, int64_t tile) const {
    size_t begin = std::min(static_cast<size_t>(tile) * tile_elements_, block.count);
    size_t end = std::min(begin + tile_elements_, block.count);
    return {block.address + begin * item_size_, end - begin};
  }
  // Elements of the whole that contains a chunk: `data`, or its block.
  static size_t whole(const Call& call, const ChunkRef& chunk) {
    return chunk.buffer == Buffer::data ? call.data.count : call.block_of(chunk).count;
  }

 private:
  Span cut(const Span& whole, int parts, int first, int last) const {
    size_t begin = partition(whole.count, parts, first), end = partition(whole.count, parts, last);
    return {whole.address + begin * item_size_, end - begin};
  }

  size_t item_size_ = 1;
  size_t slot_bytes_ = 0;
  size_t count_ = 0;  // of `data`
  size_t tile_elements_ = 1;
  int64_t num_tiles_ = 0;
};

}  // namespace hccl
