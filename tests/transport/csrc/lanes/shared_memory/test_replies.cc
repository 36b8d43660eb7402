// Messages that are written straight into registered memory of their receiver.
#include "lanes/shared_memory/replies.h"

#include <algorithm>
#include <span>
#include <vector>

#include "lanes.h"

namespace hccl::test {
namespace {

constexpr size_t num_bytes = 65536;

struct Pair {
  std::unique_ptr<Ends> ends = shm_lane_with_slots(num_bytes);
  std::shared_ptr<Arena> arena = Arena::create(size_t{4} << 20);
  std::span<std::byte> source = place(1);
  std::vector<std::byte> before = payload_of(1, num_bytes), answer = payload_of(2, num_bytes);
  ShmLane& left = static_cast<ShmLane&>(*ends->left);
  ShmLane& right = static_cast<ShmLane&>(*ends->right);

  Pair() {
    left.set_arenas(arena, nullptr);
    right.set_arenas(nullptr, arena->window());
  }
  // Registered memory of `left`.
  std::span<std::byte> place(uint64_t seed) {
    std::span<std::byte> made(arena->allocate(num_bytes), num_bytes);
    std::ranges::copy(payload_of(seed, num_bytes), made.begin());
    return made;
  }
  bool has(std::span<const std::byte> expected) const {
    return std::ranges::equal(source, expected);
  }
  void send(ShmLane& lane, const std::byte* payload, uint16_t kind = 0, size_t size = num_bytes) {
    lane.post_send({.length = static_cast<uint32_t>(size), .kind = kind, .wants_reply = kind > 0},
                   payload);
  }
  // `left` asks that message `kind` from now on be written to its source.
  void ask(uint16_t kind = 1) { send(left, source.data(), kind); }
  void reply() { send(right, answer.data()); }
  void take(ShmLane& lane) {
    CHECK(lane.peek() != nullptr && lane.lend() != nullptr);
    lane.release();
  }
};

HCCL_TEST(a_reply_lies_in_the_source_before_its_receiver_looks) {
  Pair pair;
  pair.ask();
  pair.take(pair.right);
  CHECK(!pair.has(pair.answer));
  pair.reply();
  CHECK(pair.has(pair.answer) && pair.right.settled());
  CHECK(pair.left.peek() != nullptr && pair.left.lend() == pair.source.data());
  CHECK(pair.left.receive(pair.source.data()));
  pair.left.release();
  CHECK(pair.ends->statistics.announced.value() == 4);
}

HCCL_TEST(each_of_several_replies_goes_to_its_own_source) {
  Pair pair;
  std::vector<std::span<std::byte>> sources;
  std::vector<std::vector<std::byte>> answers;
  for (uint64_t i = 0; i < 5; ++i) {
    sources.push_back(pair.place(i));
    answers.push_back(payload_of(10 + i, num_bytes));
  }
  pair.send(pair.right, pair.answer.data());
  for (uint16_t i = 0; i < 5; ++i) {
    pair.send(pair.left, sources[i].data(), static_cast<uint16_t>(i + 2));
  }
  for (int i = 0; i < 5; ++i) pair.take(pair.right);
  for (const auto& answer : answers) pair.send(pair.right, answer.data());
  for (size_t i = 0; i < 5; ++i) CHECK(std::ranges::equal(sources[i], answers[i]));
  pair.take(pair.left);
  for (const auto& source : sources) {
    CHECK(pair.left.peek() != nullptr && pair.left.lend() == source.data());
    pair.left.release();
  }
  CHECK(pair.left.flush() && pair.left.settled());
}

// What does not fit a reply is sent as if nobody had asked.
HCCL_TEST(a_message_of_another_length_or_number_is_no_reply) {
  for (uint16_t kind : {uint16_t{1}, uint16_t{2}}) {
    Pair pair;
    pair.ask(kind);
    pair.take(pair.right);
    size_t size = kind == 1 ? num_bytes - 1 : num_bytes;
    pair.send(pair.right, pair.answer.data(), 0, size);
    CHECK(pair.has(pair.before));
    CHECK(pair.left.peek() != nullptr && pair.left.peek()->length == size);
    CHECK(std::equal(pair.answer.begin(), pair.answer.begin() + static_cast<ptrdiff_t>(size),
                     pair.left.lend()));
  }
}

HCCL_TEST(a_reply_that_was_asked_for_too_late_or_twice_is_none) {
  Pair pair;
  pair.reply();
  pair.ask();  // for the message that is on its way
  pair.ask();  // for the same one
  pair.take(pair.right);
  pair.take(pair.right);
  pair.take(pair.left);
  CHECK(pair.has(pair.before));
  pair.reply();
  CHECK(pair.has(pair.before));
  pair.take(pair.left);
}

HCCL_TEST(only_a_message_that_asks_gets_a_reply) {
  Pair pair;
  pair.left.post_send({.length = num_bytes, .kind = 1}, pair.source.data());
  pair.take(pair.right);
  pair.reply();
  CHECK(pair.has(pair.before));
}

HCCL_TEST(a_peer_asks_for_no_more_replies_than_a_ring_has_cells) {
  Replies replies;
  auto add = [&](uint64_t number) { return replies.add({number, 7, nullptr, 1}); };
  for (uint64_t number = 1; number <= 64; ++number) CHECK(add(number));
  CHECK(!add(65));
  replies.forget(2);
  CHECK(!add(64) && add(65));
  CHECK(replies.find(3, 7, 1) != nullptr);
  CHECK(replies.find(2, 7, 1) == nullptr && replies.find(4, 7, 1) == nullptr);
  CHECK(replies.find(3, 8, 1) == nullptr && replies.find(3, 7, 2) == nullptr);
}

HCCL_TEST(nothing_is_written_into_a_call_that_has_failed) {
  Pair pair;
  pair.ask();
  pair.take(pair.right);
  pair.ends->segments[0]->withdraw();
  CHECK(throws<LaneError>([&] { pair.reply(); }));
  CHECK(pair.has(pair.before));
}

// The k-th next message is counted from when the one that wants it was posted, however long that
// waits.
HCCL_TEST(a_message_that_has_waited_gets_the_same_reply) {
  for (uint16_t kind : {uint16_t{1}, uint16_t{2}}) {
    Pair pair;
    std::vector<std::byte> other(num_bytes);
    for (int i = 0; i < 4; ++i)
      pair.left.post_send({.length = num_bytes}, other.data());  // 3 slots
    pair.ask(kind);
    CHECK(!pair.left.flushed());
    pair.send(pair.right, other.data());
    pair.take(pair.left);
    for (int i = 0; i < 5; ++i) {
      pair.take(pair.right);
      pair.left.flush();
    }
    bool is_second = kind == 2;  // the first one came meanwhile
    for (int i = 0; i < 2; ++i) {
      pair.reply();
      CHECK(pair.has(pair.answer) == is_second);
      pair.take(pair.left);
    }
  }
}

// What a lane has copied to make room is no place for a reply, and not to be read where it lies.
HCCL_TEST(a_copy_that_waits_does_not_stay_in_place) {
  Pair pair;
  for (int i = 0; i < ring_entries; ++i) pair.left.post_send({}, nullptr);
  pair.ask();
  CHECK(!pair.left.flushed());
  pair.left.detach();
  std::fill(pair.source.begin(), pair.source.end(), std::byte{0});
  for (int i = 0; i < ring_entries; ++i) {
    CHECK(pair.right.peek() != nullptr);
    pair.right.release();
  }
  CHECK(pair.left.flush() && pair.left.flushed() && pair.left.settled());
  CHECK(pair.right.peek() != nullptr);
  CHECK(std::equal(pair.before.begin(), pair.before.end(), pair.right.lend()));
  pair.right.release();
  pair.reply();
  CHECK(pair.has(std::vector<std::byte>(num_bytes)));
}

HCCL_TEST(a_reply_of_another_call_is_none) {
  Pair pair;
  pair.ask();
  pair.take(pair.right);
  pair.right.post_send({.fingerprint = 1, .length = num_bytes}, pair.answer.data());
  CHECK(pair.has(pair.before));
  CHECK(pair.left.peek() != nullptr && pair.left.receive(pair.source.data()) &&
        pair.has(pair.answer));
  pair.left.release();
}

}  // namespace
}  // namespace hccl::test
