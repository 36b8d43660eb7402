// What ranks of a node post for each other, step by step.
#include <algorithm>
#include <cstring>
#include <numeric>

#include "lanes.h"
#include "lanes/shared_memory/board.h"

namespace hccl::test {
namespace {

constexpr uint64_t call = 7;

struct Node {
  Statistics statistics;
  std::vector<std::shared_ptr<Segment>> segments;
  std::vector<std::unique_ptr<Board>> boards;  // rank i has local rank i; one rank is elsewhere
  std::vector<int> everyone;

  explicit Node(int num_ranks) : everyone(static_cast<size_t>(num_ranks) + 1) {
    std::iota(everyone.begin(), everyone.end(), 0);
    SegmentShape shape{num_ranks, 1, 3, slot_bytes};
    for (int rank = 0; rank < num_ranks; ++rank) segments.push_back(Segment::create(shape));
    for (int rank = 0; rank < num_ranks; ++rank) {
      const auto& mine = segments[static_cast<size_t>(rank)];
      boards.push_back(std::make_unique<Board>(mine, rank, num_ranks + 1,
                                               std::make_shared<Distance>(), statistics));
      for (int peer = 0; peer < num_ranks; ++peer) {
        if (peer == rank) continue;
        auto theirs = Segment::open(duplicate(segments[static_cast<size_t>(peer)]->fd()), shape);
        auto bell = std::make_shared<Doorbell>(theirs, new_event(), statistics);
        boards.back()->add_peer(peer, peer, theirs, bell);
      }
    }
  }

  Board& operator[](int rank) { return *boards[static_cast<size_t>(rank)]; }
  std::span<const int> just(int rank) {
    return std::span<const int>(everyone).subspan(static_cast<size_t>(rank), 1);
  }
  void end_step(uint64_t fingerprint = call) {
    for (const auto& board : boards) board->end_step(fingerprint);
  }
};

Header header(size_t length, uint64_t fingerprint = call) {
  return {.fingerprint = fingerprint, .length = static_cast<uint32_t>(length)};
}

bool holds(Board& board, int from, const std::vector<std::byte>& expected) {
  const Header* header = board.peek(from);
  return header != nullptr && header->length == expected.size() && board.payload(from) != nullptr &&
         std::equal(expected.begin(), expected.end(), board.payload(from));
}

HCCL_TEST(one_payload_for_all_arrives_from_cell_and_area) {
  Node node(3);
  uint64_t number = 0;
  for (size_t size : {size_t{0}, size_t{1}, inline_bytes, inline_bytes + 1, post_buffer_bytes}) {
    auto payload = payload_of(++number, size);
    CHECK(node[1].peek(0) == nullptr);
    node[0].add({node.everyone, header(size), payload.data()});
    CHECK(node[0].post() == Board::Posted::whole);
    CHECK(holds(node[1], 0, payload) && holds(node[2], 0, payload));
    CHECK(node[1].peek(2) == nullptr);
    node.end_step();
  }
  CHECK(!node[0].has(3) && node[0].has(2));
  CHECK(node.statistics.shm.messages.value() == 10);
}

HCCL_TEST(each_reader_gets_its_own) {
  Node node(4);
  uint64_t number = 0;
  for (size_t length : {size_t{0}, size_t{3}, size_t{1000}, size_t{2500}}) {
    std::vector<std::vector<std::byte>> payloads;
    for (size_t peer = 0; peer < 4; ++peer) {
      payloads.push_back(payload_of(++number, length * peer));
    }
    for (int peer : {3, 1, 2}) {
      const auto& payload = payloads[static_cast<size_t>(peer)];
      node[0].add({node.just(peer), header(payload.size()), payload.data()});
    }
    CHECK(node[0].post() == Board::Posted::whole);
    for (int peer : {1, 2, 3}) CHECK(holds(node[peer], 0, payloads[static_cast<size_t>(peer)]));
    node.end_step();
  }
}

HCCL_TEST(what_is_too_long_goes_by_lane) {
  Node node(2);
  auto payload = payload_of(1, post_buffer_bytes + 1);
  node[0].add({node.everyone, header(payload.size()), payload.data()});
  CHECK(node[0].post() == Board::Posted::by_lane);
  CHECK(node[1].peek(0) != nullptr && node[1].payload(0) == nullptr);
  CHECK(node[0].messages().size() == 1);
}

HCCL_TEST(who_is_ahead_waits_for_room) {
  constexpr SegmentShape shape{.num_local_ranks = 3};
  for (size_t size : {size_t{1}, post_buffer_bytes}) {
    Node node(shape.num_local_ranks);
    auto payload = payload_of(1, size);
    auto post = [&] {
      node[0].add({node.everyone, header(size), payload.data()});
      auto posted = node[0].post();
      if (posted == Board::Posted::whole) node[0].end_step(call);
      return posted;
    };
    for (size_t i = 0; i < (size == 1 ? post_entries : shape.num_post_buffers()); ++i) {
      CHECK(post() == Board::Posted::whole);
    }
    CHECK(post() == Board::Posted::no_room);
    node[1].end_step(call);
    CHECK(node[0].behind() == std::vector<int>{2});
    CHECK(node[0].post() == Board::Posted::no_room);
    CHECK(holds(node[2], 0, payload));
    node[2].end_step(call);
    CHECK(node[0].behind().empty());
    CHECK(node[0].post() == Board::Posted::whole);
  }
}

HCCL_TEST(what_another_call_said_in_a_step_passed_over_is_found) {
  Node node(2);
  auto payload = payload_of(1, 1);
  auto step = [&](uint64_t theirs, uint64_t mine) {
    node[0].add({node.everyone, header(1, theirs), payload.data()});
    node[0].post();
    node[0].end_step(theirs);
    node[1].end_step(mine);
  };
  step(call, call);
  step(call + 1, call + 1);
  node[0].add({node.everyone, header(1, call + 2), payload.data()});
  node[0].post();
  CHECK(node[1].peek(0)->fingerprint == call + 2);
  node[0].end_step(call + 2);
  node[1].end_step(call + 2);
  step(call + 3, call + 4);
  step(call + 5, call + 5);
  node[0].add({node.everyone, header(1, call + 6), payload.data()});
  node[0].post();
  CHECK(node[1].peek(0)->fingerprint == call + 3);
  CHECK(node[1].payload(0) != nullptr);
}

HCCL_TEST(who_reads_for_the_first_time_finds_what_was_passed_over) {
  Node node(2);
  auto payload = payload_of(1, 1);
  node[0].add({node.everyone, header(1, call + 1), payload.data()});
  node[0].post();
  node[0].end_step(call + 1);
  node[1].end_step(call);
  node[0].add({node.everyone, header(1, call + 2), payload.data()});
  node[0].post();
  // With a payload: else its reader would look for it in the lane.
  CHECK(node[1].peek(0)->fingerprint == call + 1 && node[1].payload(0) != nullptr);
}

// Who looks back may find an entry that its owner is about to post in again.
HCCL_TEST(half_of_a_later_post_is_no_earlier_one) {
  Node node(2);
  auto payload = payload_of(1, 1);
  auto post = [&] {
    node[0].add({node.everyone, header(1), payload.data()});
    CHECK(node[0].post() == Board::Posted::whole);
  };
  constexpr uint64_t last = post_entries + 7;
  for (uint64_t step = 1; step < last; ++step) {
    post();
    node.end_step();
  }
  post();
  node[0].end_step(call);
  node.segments[0]->posts()[(last + 1) % post_entries].header.fingerprint = call + 1;
  CHECK(node[1].peek(0)->fingerprint == call);
}

HCCL_TEST(malformed_posts_are_refused) {
  auto refused = [](int32_t slot, uint16_t layout, uint32_t length, uint32_t offset) {
    Node node(2);
    RingEntry& entry = node.segments[0]->posts()[1];
    entry.slot = slot;
    entry.header = header(length);
    entry.header.kind = layout;
    for (std::byte* table : {entry.payload, node.segments[0]->post_buffer(0)}) {
      uint32_t entry[] = {0, 0, 0, 0, offset, length, 0, 0};  // of local ranks 0 and 1
      std::memcpy(table, entry, sizeof entry);
    }
    entry.sequence.store(1);
    try {
      node[1].peek(0);
    } catch (const LaneError& error) {
      return error.peer() == 0;
    }
    return false;
  };
  CHECK(!refused(in_entry, 0, inline_bytes, 0) && refused(in_entry, 0, inline_bytes + 1, 0));
  CHECK(!refused(0, 0, post_buffer_bytes, 0) && refused(7, 0, post_buffer_bytes + 1, 0));
  CHECK(refused(int(SegmentShape{.num_local_ranks = 2}.num_post_buffers()), 0, 1, 0) &&
        refused(announced, 0, 1, 0));
  CHECK(!refused(0, 1, 1, post_buffer_bytes - 1) && refused(0, 1, 2, post_buffer_bytes - 1));
  CHECK(refused(0, 1, 1, ~0u) && refused(in_entry, 1, 80, 9));
}

HCCL_TEST(threads_take_thousands_of_steps) {
  constexpr int num_ranks = 3;
  Node node(num_ranks);
  auto payload_in = [](uint64_t step, int rank) {
    return payload_of(step * 8 + static_cast<uint64_t>(rank), step * 37 % 400);
  };
  auto run = [&](int me) {
    for (uint64_t step = 1; step < 3000; ++step) {
      auto mine = payload_in(step, me);
      bool posts = step % 5 != 0 || me == 1;  // now and then one posts alone, and gets ahead
      if (posts) node[me].add({node.everyone, header(mine.size()), mine.data()});
      Patience patience;
      while (node[me].post() == Board::Posted::no_room) patience.turn();
      for (int peer = 0; peer < num_ranks; ++peer) {
        if (peer == me || (step % 5 == 0 && peer != 1)) continue;
        while (node[me].peek(peer) == nullptr) patience.turn();
        CHECK(holds(node[me], peer, payload_in(step, peer)));
      }
      node[me].end_step(call);
    }
  };
  std::vector<std::thread> threads;
  for (int rank = 1; rank < num_ranks; ++rank) threads.emplace_back(run, rank);
  run(0);
  for (std::thread& thread : threads) thread.join();
}

}  // namespace
}  // namespace hccl::test
