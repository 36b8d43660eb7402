// Plans and calls that must be refused, and how calls are cut into tiles.
#include <functional>
#include <stdexcept>
#include <string>

#include "check.h"
#include "engine/calls/plan.h"

namespace hccl::test {
namespace {

// Rank 1 of 4 reduces chunks 0 and 1 of what ranks 0, 2 and 3 send, and sends a scratch slot back.
Plan good_plan() {
  Plan plan;
  plan.data_chunks = 4;
  plan.scratch_slots = 1;
  plan.max_chunk_span = 2;
  plan.peers = {0, 2, 3};
  ChunkRef two{Buffer::data, 0, 2, -1}, scratch{Buffer::data, 0, 2, 0};
  plan.ops.push_back({OpKind::recv_reduce, 0, 3, two, {}});
  plan.ops.push_back({OpKind::copy, 0, 0, scratch, two});
  plan.ops.push_back({OpKind::send, 0, 3, {}, scratch});
  plan.ops.push_back({OpKind::recv, 2, 1, two, {}});
  return plan;
}

// Rank 1 of 4 sends a block, which need not fit a slot.
Plan moving_plan() {
  Plan plan;
  plan.long_messages = true;
  plan.reduces = false;
  plan.peers = {2};
  plan.ops.push_back({OpKind::send, 0, 1, {}, {Buffer::input, 2, 3, -1}});
  return plan;
}

HCCL_TEST(every_malformed_plan_is_refused) {
  good_plan().validate(1, 4);
  moving_plan().validate(1, 4);
  const std::function<void(Plan&)> mistakes[] = {
      [](Plan& p) { p.data_chunks = -1; },
      [](Plan& p) { p.scratch_slots = -1; },
      [](Plan& p) { p.max_chunk_span = 1; },
      [](Plan& p) { p.peers = {0, 2}; },
      [](Plan& p) { p.peers = {0, 2, 4}; },
      [](Plan& p) { p.peers = {0, 1, 3}; },  // itself
      [](Plan& p) { p.peers = {2, 0, 3}; },  // not in rank order
      [](Plan& p) { p.peers = {0, 2, 2}; },  // one of them twice
      [](Plan& p) { p.ops[0].peers_begin = -1; },
      [](Plan& p) { p.ops[0].num_peers = 0; },
      [](Plan& p) { p.ops[0].num_peers = 1 << 30; },
      [](Plan& p) { p.ops[3].num_peers = 2, p.ops[3].peers_begin = 1; },
      [](Plan& p) { p.ops[0].destination.begin = -1; },
      [](Plan& p) { p.ops[0].destination.begin = 2; },
      [](Plan& p) { p.ops[0].destination = {Buffer::data, 3, 5, -1}; },
      [](Plan& p) { p.ops[0].destination = {Buffer::output, 0, 2, -1}; },
      [](Plan& p) { p.ops[0].destination = {Buffer::output, 4, 5, -1}; },
      [](Plan& p) { p.ops[0].destination = {Buffer::input, 0, 1, -1}; },  // data and blocks
      [](Plan& p) { p.data_chunks = 0, p.ops = {{OpKind::recv, 0, 1, {Buffer{7}, 0, 1, -1}, {}}}; },
      [](Plan& p) {
        p.data_chunks = 0, p.ops = {{OpKind::recv, 0, 1, {Buffer::output, 0, 2, 0}, {}}};
      },
      [](Plan& p) { p.ops[1].source.begin = -1; },
      [](Plan& p) { p.ops[2].source.scratch = 1; },
      [](Plan& p) { p.ops[2].source.scratch = -2; },
      [](Plan& p) { p = moving_plan(), p.reduces = true; },
      [](Plan& p) { p = moving_plan(), p.max_chunk_span = 2; },
      [](Plan& p) { p = moving_plan(), p.scratch_slots = 1; },
      [](Plan& p) { p = moving_plan(), p.ops[0].rendezvous = 1; },
      [](Plan& p) { p.long_messages = true; },
  };
  for (const auto& mistake : mistakes) {
    Plan plan = good_plan();
    mistake(plan);
    bool refused = false;
    try {
      plan.validate(1, 4);
    } catch (const std::invalid_argument& error) {
      refused = std::string(error.what()).find("malformed plan") == 0;
    }
    CHECK(refused);
  }
}

Call call_of(const Plan& plan, std::byte* data, size_t count, DType dtype) {
  Call call;
  call.plan = &plan;
  call.data = {data, count};
  call.dtype = dtype;
  return call;
}

// Tiles cover the data once, in order, and no op's message is longer than a slot.
HCCL_TEST(tiles_fit_slots_and_cover_the_data) {
  std::vector<std::byte> data(8 * 1000003);
  for (size_t slot_bytes : {4096ul, 131072ul}) {
    for (DType dtype : {DType::uint8, DType::float32, DType::float64}) {
      for (int span : {1, 2, 7, 512}) {
        for (size_t count : {0ul, 1ul, 511ul, 512ul, 4097ul, 1000003ul}) {
          Plan plan;
          plan.data_chunks = span + 3;
          plan.max_chunk_span = span;
          Call call = call_of(plan, data.data(), count, dtype);
          Tiling tiling(call, slot_bytes, 2);
          size_t covered = 0;
          for (int64_t tile = 0; tile < tiling.num_tiles(); ++tile) {
            for (int chunk = 0; chunk < plan.data_chunks; ++chunk) {
              Span part = tiling.resolve(call, {Buffer::data, chunk, chunk + 1, -1}, tile, nullptr);
              CHECK(part.address == data.data() + covered * size_of(dtype));
              covered += part.count;
            }
            Span widest = tiling.resolve(call, {Buffer::data, 0, span, -1}, tile, nullptr);
            CHECK(widest.count * size_of(dtype) <= slot_bytes);
          }
          CHECK(covered == count);
        }
      }
    }
  }
}

// Tiles cover each block once, in order, whatever its length, and no message is longer than a slot.
HCCL_TEST(parts_of_blocks_fit_slots_and_cover_them) {
  std::vector<std::byte> memory(3 * 4 * 100003);
  for (int parts : {1, 2, 3, 7}) {
    Plan plan;
    plan.block_parts = parts;
    Call call;
    call.plan = &plan;
    call.dtype = DType::float32;
    for (size_t count : {100003ul, 0ul, 5ul}) {
      call.output.push_back({memory.data() + call.output.size() * 400012, count});
    }
    Tiling tiling(call, 4096, 2);
    for (int block = 0; block < 3; ++block) {
      const Span& whole = call.output[static_cast<size_t>(block)];
      size_t covered = 0;
      for (int64_t tile = 0; tile < tiling.num_tiles(); ++tile) {
        for (int chunk = block * parts; chunk < (block + 1) * parts; ++chunk) {
          ChunkRef part{Buffer::output, chunk, chunk + 1, -1};
          Span span = tiling.resolve(call, part, tile, nullptr);
          CHECK(span.address == whole.address + covered * 4 && span.count * 4 <= 4096);
          CHECK(Tiling::whole(call, part) == whole.count);
          covered += span.count;
        }
      }
      CHECK(covered == whole.count);
    }
  }
}

HCCL_TEST(parts_of_blocks_are_checked) {
  auto refused = [](int parts, int chunk, int data_chunks, int span) {
    Plan plan;
    plan.block_parts = parts;
    plan.data_chunks = data_chunks;
    plan.max_chunk_span = span;
    Buffer buffer = data_chunks > 0 ? Buffer::data : Buffer::output;
    plan.ops = {{OpKind::copy, 0, 0, {buffer, chunk, chunk + 1, -1}, {buffer, 0, 1, -1}}};
    return throws<std::invalid_argument>([&] { plan.validate(0, 2); });
  };
  CHECK(!refused(3, 5, 0, 1) && !refused(1, 0, 1, 1));
  CHECK(refused(3, 6, 0, 1) && refused(0, 0, 0, 1) && refused(1 << 20, 0, 0, 1));
  CHECK(refused(3, 0, 1, 1) && refused(3, 0, 0, 2));
}

// What fits the plan's smallest message stays one message, whatever channels could share it.
HCCL_TEST(small_calls_are_not_cut) {
  for (size_t least : {size_t{16384}, size_t{131072}}) {
    for (size_t count : {size_t{1}, least / 4 - 1, least / 4, least / 4 + 16}) {
      Plan plan;
      plan.data_chunks = plan.max_chunk_span = 1;
      plan.min_message_bytes = least;
      Tiling tiling(call_of(plan, nullptr, count, DType::float32), 131072, 2);
      CHECK(tiling.num_tiles() == (count * 4 <= least ? 1 : 2));
    }
  }
}

// Two slots of scratch in a row are one message of two blocks, and lie inside the slots of the
// engine.
HCCL_TEST(blocks_of_one_message_lie_end_to_end) {
  Plan plan;
  plan.scratch_slots = 3;
  plan.max_chunk_span = 2;
  CHECK(plan.slots_needed() == 2);
  Call call;
  call.plan = &plan;
  call.input = call.output = std::vector<Span>(4, {nullptr, 5000});
  Tiling tiling(call, 4096, 1);
  CHECK(tiling.num_tiles() == 3);
  std::vector<std::byte> scratch(2 * 4096);
  for (size_t count : {2048ul, 904ul}) {
    Span both =
        tiling.resolve(call, {Buffer::output, 0, 2, 1}, count == 904 ? 2 : 0, scratch.data());
    CHECK(both.address == scratch.data() + count && both.count == 2 * count);
  }
  call.output[3].count = 4999;
  CHECK(throws<std::invalid_argument>([&] { Tiling uneven(call, 4096, 1); }));
}

HCCL_TEST(a_span_wider_than_a_slot_is_refused) {
  Plan plan;
  plan.data_chunks = plan.max_chunk_span = 513;
  CHECK(throws<std::invalid_argument>(
      [&] { Tiling tiling(call_of(plan, nullptr, 10, DType::float64), 4096, 2); }));
}

}  // namespace
}  // namespace hccl::test
