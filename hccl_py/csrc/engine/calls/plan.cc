#include "engine/calls/plan.h"

#include <algorithm>
#include <functional>
#include <stdexcept>
#include <string>

namespace hccl {

namespace {

constexpr size_t cache_line = 64;
constexpr int max_block_parts = 1 << 16;  // MOST_CHUNKS in Python; times 4096 ranks fits an int

constexpr size_t divide_up(size_t a, size_t b) { return (a + b - 1) / b; }

}  // namespace

size_t Call::num_block_bytes() const {
  auto count = [](const std::vector<Span>& blocks) {
    size_t sum = 0;
    for (const Span& block : blocks) sum += block.count;
    return sum;
  };
  return std::max(count(input), count(output)) * size_of(dtype);
}

void Plan::validate(int rank, int world_size) const {
  auto require = [](bool good, const char* what) {
    if (!good) throw std::invalid_argument(std::string("malformed plan: ") + what);
  };
  auto check_chunk = [&](const ChunkRef& chunk) {
    bool of_data = chunk.buffer == Buffer::data;
    int limit = of_data ? data_chunks : world_size * block_parts, span = chunk.end - chunk.begin;
    // Tiles are cut for one kind or the other.
    require(of_data == (data_chunks > 0) && chunk.buffer <= Buffer::output, "buffer");
    require(chunk.begin >= 0 && chunk.begin < chunk.end && chunk.end <= limit, "chunk range");
    require(span <= max_chunk_span && (of_data || span == 1 || chunk.scratch >= 0), "chunk span");
    require(chunk.scratch >= -1 && chunk.scratch < scratch_slots, "scratch slot");
    require(of_data || chunk.scratch <= scratch_slots - span, "scratch slots");
  };
  require(compressed.empty() || compressed.size() == peers.size(), "compressed edges");
  require(std::is_sorted(steps.begin(), steps.end()) &&
              (steps.empty() || (steps[0] >= 0 && static_cast<size_t>(steps.back()) == ops.size())),
          "steps");
  require(data_chunks >= 0 && scratch_slots >= 0 && max_chunk_span >= 0, "counts");
  require(block_parts == 1 || (block_parts > 1 && block_parts <= max_block_parts &&
                               data_chunks == 0 && max_chunk_span <= 1 && !long_messages),
          "parts of blocks");
  require(
      !long_messages || (data_chunks <= 1 && scratch_slots == 0 && max_chunk_span == 1 && !reduces),
      "long messages");
  for (const Op& op : ops) {
    require(
        op.peers_begin >= 0 && op.num_peers >= 0 &&
            static_cast<size_t>(op.peers_begin) + static_cast<size_t>(op.num_peers) <= peers.size(),
        "peers");
    for (int i = 0; i < op.num_peers; ++i) {
      int peer = peers[static_cast<size_t>(op.peers_begin + i)];
      require(peer >= 0 && peer < world_size && peer != rank, "peer");
    }
    if (op.kind != OpKind::copy) require(op.num_peers > 0, "an op without peers");
    if (op.kind == OpKind::recv) require(op.num_peers == 1, "recv takes one peer");
    auto begin = peers.begin() + op.peers_begin, end = begin + op.num_peers;
    // Reduction in rank order gives all ranks the same bits.
    require(op.kind != OpKind::recv_reduce ||
                std::adjacent_find(begin, end, std::greater_equal<>()) == end,
            "order of peers");
    for (int i = 0; i < op.num_peers && !compressed.empty(); ++i) {
      // A payload is encoded once for all readers, and an encoding's blocks start with a chunk.
      const ChunkRef& chunk = op.kind == OpKind::send ? op.source : op.destination;
      require(!is_compressed(op, i) || chunk.end == chunk.begin + 1, "span of a compressed chunk");
      require(op.kind != OpKind::send || is_compressed(op, i) == is_compressed(op, 0),
              "a send that is compressed for some peers only");
    }
    // A reply is identified by the number of its entry; long messages have several entries.
    require(op.rendezvous >= -1 && op.rendezvous < (long_messages ? 1 : 0xffff), "rendezvous");
    if (op.kind != OpKind::send) check_chunk(op.destination);
    bool has_part = op.kind == OpKind::recv_reduce && op.source.is_given();
    if (op.kind == OpKind::send || op.kind == OpKind::copy || has_part) check_chunk(op.source);
  }
}

bool Plan::only_sends() const {
  return std::all_of(ops.begin(), ops.end(), [](const Op& op) { return op.kind == OpKind::send; });
}

size_t Plan::slots_needed() const {
  size_t slots = static_cast<size_t>(scratch_slots);
  return data_chunks ? slots : divide_up(slots, static_cast<size_t>(std::max(max_chunk_span, 1)));
}

Tiling::Tiling(const Call& call, size_t slot_bytes, int num_channels)
    : item_size_(size_of(call.dtype)), slot_bytes_(slot_bytes), count_(call.data.count) {
  const Plan& plan = *call.plan;
  size_t slot_elements = slot_bytes / item_size_;
  size_t span = static_cast<size_t>(std::max(plan.max_chunk_span, 1));
  if (span > slot_elements) throw std::invalid_argument("an op spans more chunks than fit a slot");
  if (plan.data_chunks) {
    size_t chunks = static_cast<size_t>(plan.data_chunks);
    size_t line = std::max<size_t>(1, cache_line / item_size_);
    // Enough tiles that every channel has two to overlap, within the two limits.
    size_t wanted = divide_up(call.data.count, chunks * 2 * static_cast<size_t>(num_channels));
    size_t least = divide_up(divide_up(plan.min_message_bytes, item_size_), span);
    size_t most = slot_elements / span;
    size_t chunk = std::clamp(divide_up(std::max(wanted, least), line) * line, size_t{1}, most);
    tile_elements_ = chunk * chunks;
    num_tiles_ = std::max<int64_t>(1, divide_up(call.data.count, tile_elements_));
    return;
  }
  // Block lengths may differ between ranks here, so a tile may depend only on the slot.
  tile_elements_ = slot_elements / span * static_cast<size_t>(plan.block_parts);
  size_t longest = 0;
  for (const std::vector<Span>* blocks : {&call.input, &call.output}) {
    for (const Span& block : *blocks) longest = std::max(longest, block.count);
  }
  for (const Span& block : call.output) {
    if (span > 1 && block.count != longest) {
      throw std::invalid_argument("blocks of several lengths");
    }
  }
  num_tiles_ = std::max<int64_t>(1, divide_up(longest, tile_elements_));
}

}  // namespace hccl
