// Messages that are written straight into ordinary memory of their receiver.
#include "lanes/shared_memory/replies.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <thread>
#include <vector>

#include "lanes.h"

namespace hccl::test {
namespace {

constexpr size_t num_bytes = 65536;

struct Pair {
  std::unique_ptr<Ends> ends = shm_lane_with_slots(num_bytes);
  std::vector<std::byte> source = payload_of(1, num_bytes), answer = payload_of(2, num_bytes);
  ShmLane& left = static_cast<ShmLane&>(*ends->left);
  ShmLane& right = static_cast<ShmLane&>(*ends->right);

  Pair() {
    for (ShmLane* lane : {&left, &right}) CHECK(lane->read_from(getpid()));
  }
  void send(ShmLane& lane, const std::byte* payload, uint16_t kind = 0, size_t size = num_bytes) {
    lane.post_send({.length = static_cast<uint32_t>(size),
                    .kind = kind,
                    .wants_reply = kind > 0,
                    .copy_mode = CopyMode::single},
                   payload);
  }
  // `left` asks that message `kind` from now on be written to its source.
  void ask(uint16_t kind = 1) { send(left, source.data(), kind); }
  void reply() { send(right, answer.data()); }
  void take(ShmLane& lane) {
    CHECK(lane.peek() != nullptr && lane.lend() != nullptr);
    lane.release();
  }
  std::atomic<uint32_t>& right_writes() { return ends->segments[1]->consumed(0, 0).writes_reply; }
};

HCCL_TEST(a_reply_lies_in_the_source_before_its_receiver_looks) {
  Pair pair;
  pair.ask();
  pair.take(pair.right);
  CHECK(pair.source != pair.answer);
  pair.reply();
  CHECK(pair.source == pair.answer && pair.right.settled());
  CHECK(pair.left.peek() != nullptr && pair.left.lend() == pair.source.data());
  CHECK(pair.left.receive(pair.source.data()));
  pair.left.release();
  CHECK(pair.ends->statistics.single_copies.value() == 2 &&
        pair.ends->statistics.announced.value() == 0);
  CHECK(pair.right_writes() == 0);
}

HCCL_TEST(each_of_several_replies_goes_to_its_own_source) {
  Pair pair;
  std::vector<std::vector<std::byte>> sources, answers;
  for (uint64_t i = 0; i < 5; ++i) {
    sources.push_back(payload_of(i, num_bytes));
    answers.push_back(payload_of(10 + i, num_bytes));
  }
  pair.send(pair.right, pair.answer.data());
  for (uint16_t i = 0; i < 5; ++i) {
    pair.send(pair.left, sources[i].data(), static_cast<uint16_t>(i + 2));
  }
  for (int i = 0; i < 5; ++i) pair.take(pair.right);
  for (const auto& answer : answers) pair.send(pair.right, answer.data());
  CHECK(sources == answers);
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
    CHECK(pair.source == payload_of(1, num_bytes));
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
  CHECK(pair.source == payload_of(1, num_bytes));
  pair.reply();
  CHECK(pair.source == payload_of(1, num_bytes));
  pair.take(pair.left);
}

HCCL_TEST(only_a_message_that_asks_gets_a_reply) {
  Pair pair;
  pair.left.post_send({.length = num_bytes, .kind = 1, .copy_mode = CopyMode::single},
                      pair.source.data());  // as send and recv do
  pair.take(pair.right);
  pair.reply();
  CHECK(pair.source == payload_of(1, num_bytes));
}

HCCL_TEST(a_peer_asks_for_no_more_replies_than_a_ring_has_cells) {
  Replies replies;
  auto add = [&](uint64_t number) { return replies.add({number, 7, nullptr, 1, true}); };
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
  CHECK(pair.source == payload_of(1, num_bytes) && pair.right_writes() == 0);
}

// As where a sandbox allows to read other processes and not to write them.
HCCL_TEST(a_reply_that_cannot_be_written_travels_as_others_do) {
  Pair pair;
  void* unwritable = mmap(nullptr, num_bytes, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  CHECK(unwritable != MAP_FAILED);
  pair.send(pair.left, static_cast<std::byte*>(unwritable), 1);
  pair.take(pair.right);
  pair.reply();
  CHECK(pair.right_writes() == 0);
  CHECK(pair.left.peek() != nullptr && pair.left.receive(pair.source.data()) &&
        pair.source == pair.answer);
  pair.left.release();
  CHECK(munmap(unwritable, num_bytes) == 0);
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
      CHECK((pair.source == pair.answer) == is_second);
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
  std::vector<std::byte> expected = payload_of(1, num_bytes);
  CHECK(std::equal(expected.begin(), expected.end(), pair.right.lend()));
  pair.right.release();
  pair.reply();
  CHECK(std::all_of(pair.source.begin(), pair.source.end(),
                    [](std::byte byte) { return byte == std::byte{0}; }));
}

HCCL_TEST(a_reply_of_another_call_is_none) {
  Pair pair;
  pair.ask();
  pair.take(pair.right);
  pair.right.post_send({.fingerprint = 1, .length = num_bytes}, pair.answer.data());
  CHECK(pair.source == payload_of(1, num_bytes));
  CHECK(pair.left.peek() != nullptr && pair.left.receive(pair.source.data()) &&
        pair.source == pair.answer);
  pair.left.release();
}

HCCL_TEST(a_lane_is_abandoned_once_its_peer_writes_no_reply) {
  Pair pair;
  pair.right_writes() = 1;
  CHECK(pair.left.abandon());  // asked for nothing
  pair.ask();
  CHECK(!pair.left.abandon() && !pair.left.abandon());
  pair.right_writes() = 0;
  CHECK(pair.left.abandon());
  pair.right_writes() = 1;
  CHECK(pair.left.abandon());
}

// The owner of the memory gives up around the moment at which the reply is written, wherever that
// lies on this machine, and uses its memory at once.
HCCL_TEST(nothing_is_written_after_its_owner_gave_up) {
  constexpr size_t num_rounds = 3000;
  int num_written = 0, num_refused = 0;
  for (size_t round = 0, delay = 0; round < num_rounds; ++round) {
    Pair pair;
    pair.ask();
    pair.take(pair.right);
    std::atomic<bool> has_begun{false};
    bool is_written = false;
    std::thread writer([&] {
      has_begun = true;
      try {
        pair.reply();
        is_written = true;
      } catch (const LaneError&) {
      }
    });
    while (delay > 0 && !has_begun) {
    }
    pass_time(delay);
    pair.ends->segments[0]->withdraw();
    while (!pair.left.abandon()) std::this_thread::yield();
    std::fill(pair.source.begin(), pair.source.end(), std::byte{0});
    pass_time(2000);
    CHECK(std::all_of(pair.source.begin(), pair.source.end(),
                      [](std::byte byte) { return byte == std::byte{0}; }));
    writer.join();
    CHECK(std::all_of(pair.source.begin(), pair.source.end(),
                      [](std::byte byte) { return byte == std::byte{0}; }));
    ++(is_written ? num_written : num_refused);
    // Three quarters of the time end at 0, where it gives up before the writer has begun.
    delay = is_written ? delay * 3 / 4 : delay * 5 / 4 + 100;
  }
  CHECK(num_written > 0 && num_refused > 0);
}

}  // namespace
}  // namespace hccl::test
