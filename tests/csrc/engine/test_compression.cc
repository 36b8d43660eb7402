// Compressed edges between threads as ranks: every rank ends with the same bits, near the sum, and
// a message of the wrong length ends the communicator.
#include <cmath>

#include "ranks.h"

namespace hccl::test {
namespace {

// A mesh whose edges between nodes are compressed; the sends of the second step that go to other
// nodes come first.
std::shared_ptr<Plan> compressed_mesh(int me, const std::vector<int>& nodes) {
  auto plan = std::make_shared<Plan>();
  int n = static_cast<int>(nodes.size());
  plan->data_chunks = n;
  std::vector<int> others, elsewhere, mates;
  for (int peer = 0; peer < n; ++peer) {
    if (peer == me) continue;
    others.push_back(peer);
    bool apart = nodes[static_cast<size_t>(peer)] != nodes[static_cast<size_t>(me)];
    (apart ? elsewhere : mates).push_back(peer);
  }
  auto chunk = [](int i) { return ChunkRef{Buffer::data, i, i + 1, -1}; };
  auto add = [&](OpKind kind, const std::vector<int>& peers, ChunkRef to, ChunkRef from) {
    if (peers.empty()) return;
    int begin = static_cast<int>(plan->peers.size());
    plan->ops.push_back({kind, begin, static_cast<int>(peers.size()), to, from});
    for (int peer : peers) {
      plan->peers.push_back(peer);
      bool apart = nodes[static_cast<size_t>(peer)] != nodes[static_cast<size_t>(me)];
      plan->compressed.push_back(apart);
    }
  };
  for (int peer : others) add(OpKind::send, {peer}, {}, chunk(peer));
  add(OpKind::recv_reduce, others, chunk(me), {});
  add(OpKind::send, elsewhere, {}, chunk(me));
  add(OpKind::send, mates, {}, chunk(me));
  for (int peer : others) add(OpKind::recv, {peer}, chunk(peer), {});
  plan->validate(me, n);
  return plan;
}

std::vector<float> values_of(int rank, size_t count) {
  std::vector<float> values(count);
  for (size_t i = 0; i < count; ++i) {
    values[i] = std::sin(static_cast<float>(i * 7 + static_cast<size_t>(rank) * 3));
  }
  return values;
}

HCCL_TEST(all_ranks_end_with_the_same_bits_near_the_sum) {
  for (const auto& layout : {std::vector<int>{0, 1}, {0, 0, 1, 1}, {0, 0, 1, 2}}) {
    World world(layout);
    auto n = layout.size();
    for (Compression compression : {Compression::bf16, Compression::int8}) {
      for (size_t count : {0ul, 1ul, 5ul, 1000ul, 100003ul, 600000ul}) {
        std::vector<std::vector<float>> data(n), residuals(n, std::vector<float>(count));
        world.run([&](int me) {
          auto rank = static_cast<size_t>(me);
          data[rank] = values_of(me, count);
          RequestPtr request = all_reduce(compressed_mesh(me, layout), data[rank]);
          request->call.compression = compression;
          request->call.residual = reinterpret_cast<std::byte*>(residuals[rank].data());
          world.ranks[rank]->run(request, no_interrupt);
        });
        std::vector<double> sums(count);
        for (size_t rank = 0; rank < n; ++rank) {
          CHECK(data[rank] == data[0]);
          std::vector<float> values = values_of(static_cast<int>(rank), count);
          for (size_t i = 0; i < count; ++i) sums[i] += values[i] - residuals[rank][i];
        }
        // What was lost, and nothing else, lies between the result and the sum.
        for (size_t i = 0; i < count; ++i) CHECK(std::fabs(data[0][i] - sums[i]) < 1e-5);
      }
    }
    const CompressionStatistics& counted = world.ranks[0]->statistics().compression;
    CHECK(counted.calls.value() == 12 && counted.sent_bytes.value() < counted.raw_bytes.value());
  }
}

HCCL_TEST(message_of_another_length_ends_the_communicator) {
  World world({0, 1});
  world.run([&](int me) {
    std::vector<float> data = values_of(me, 1000);
    RequestPtr request = all_reduce(compressed_mesh(me, {0, 1}), data);
    request->call.compression = me == 0 ? Compression::bf16 : Compression::int8;
    CHECK(cause_of(*world.ranks[static_cast<size_t>(me)], request) != Cause::none);
  });
}

HCCL_TEST(sends_that_are_half_compressed_and_wide_ones_are_refused) {
  std::shared_ptr<Plan> plan = compressed_mesh(0, {0, 0, 1, 2});
  plan->ops[0].num_peers = 2;  // rank 1 of this node, rank 2 of another
  CHECK(throws<std::invalid_argument>([&] { plan->validate(0, 4); }));
  plan = compressed_mesh(0, {0, 0, 1, 2});
  plan->max_chunk_span = 2;
  plan->ops[1].source.end += 1;
  CHECK(throws<std::invalid_argument>([&] { plan->validate(0, 4); }));
  plan = compressed_mesh(0, {0, 0, 1, 2});
  plan->compressed.pop_back();
  CHECK(throws<std::invalid_argument>([&] { plan->validate(0, 4); }));
}

}  // namespace
}  // namespace hccl::test
