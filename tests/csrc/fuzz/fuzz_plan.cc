// Plans as Python hands them over: what validate() accepts touches nothing but its buffers.
#include <stdexcept>

#include "check.h"
#include "feed.h"
#include "engine/plan.h"

namespace hccl::fuzz {
namespace {

constexpr size_t slot_bytes = 256;
constexpr size_t max_ops = 16;
constexpr size_t max_elements = 600;

// Small numbers as a rule, any at times.
int number(Feed& feed) {
  uint8_t first = feed.take<uint8_t>();
  return first < 0xf0 ? first % 12 - 2 : feed.take<int>();
}

ChunkRef chunk(Feed& feed) {
  return {static_cast<Buffer>(number(feed)), number(feed), number(feed), number(feed)};
}

// A block whose end ASan guards.
struct Owned {
  std::unique_ptr<std::byte[]> memory;
  Block block;
  explicit Owned(size_t count) : memory(new std::byte[count]()), block{memory.get(), count} {}
};

void check_inside(const Span& span, const Block& block) {
  CHECK(span.count == 0 ||
        (span.address >= block.address && span.address + span.count <= block.address + block.count));
}

void run(Feed& feed) {
  int world_size = 1 + static_cast<int>(feed.below(5));
  int rank = static_cast<int>(feed.below(static_cast<size_t>(world_size)));
  Plan plan;
  plan.data_chunks = number(feed);
  plan.scratch_slots = number(feed);
  plan.max_chunk_span = number(feed);
  plan.min_message_bytes = feed.below(200);
  size_t num_ops = feed.below(max_ops);
  for (size_t i = feed.below(10); i-- > 0;) plan.peers.push_back(number(feed));
  for (size_t i = 0; i < num_ops; ++i) {
    auto kind = static_cast<OpKind>(feed.below(4));
    int peers_begin = number(feed), num_peers = number(feed);
    ChunkRef destination = chunk(feed);
    plan.ops.push_back({kind, peers_begin, num_peers, destination, chunk(feed)});
  }
  plan.validate(rank, world_size);

  std::vector<Owned> blocks;
  Call call;
  call.plan = &plan;
  size_t count = feed.take<uint16_t>() % max_elements;
  blocks.emplace_back(plan.data_chunks ? count : 0);
  call.data = blocks.back().block;
  for (int i = 0; i < world_size; ++i) {
    for (std::vector<Block>* list : {&call.input, &call.output}) {
      blocks.emplace_back(feed.take<uint16_t>() % max_elements);
      list->push_back(blocks.back().block);
    }
  }
  Tiling tiling(call, slot_bytes, 1 + static_cast<int>(feed.below(4)));
  size_t scratch_bytes = static_cast<size_t>(plan.scratch_slots) * slot_bytes;
  std::vector<std::byte> scratch(std::min<size_t>(scratch_bytes, size_t{1} << 16));
  for (int64_t tile = 0; tile < std::min<int64_t>(tiling.num_tiles(), 8); ++tile) {
    for (const Op& op : plan.ops) {
      for (const ChunkRef* one : {&op.destination, &op.source}) {
        bool used = one == &op.destination ? op.kind != OpKind::send
                                           : op.kind == OpKind::send || op.kind == OpKind::copy;
        if (!used) continue;
        Span span = tiling.resolve(call, *one, tile, scratch.data());
        CHECK(span.count <= slot_bytes);  // bytes here: nothing of a tile exceeds a slot
        if (one->scratch >= 0) {
          CHECK(one->scratch < plan.scratch_slots);
          continue;
        }
        size_t at = static_cast<size_t>(one->begin);
        check_inside(span, one->buffer == Buffer::data    ? call.data
                           : one->buffer == Buffer::input ? call.input.at(at)
                                                          : call.output.at(at));
      }
    }
  }
}

}  // namespace
}  // namespace hccl::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  hccl::fuzz::Feed feed(data, size);
  try {
    hccl::fuzz::run(feed);
  } catch (const std::invalid_argument&) {
    // The answer to most of it.
  }
  return 0;
}
