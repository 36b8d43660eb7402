// Messages that both ends copy.
#include "lanes/shared_memory/joint_copy.h"

#include <unistd.h>

#include <atomic>
#include <thread>
#include <vector>

#include "lanes.h"

namespace hccl::test {
namespace {

using Outcome = JointReader::Outcome;

constexpr size_t num_pieces = 9;
constexpr size_t num_bytes = num_pieces * joint_piece_bytes - 5;

struct Joint {
  std::shared_ptr<Segment> segment = Segment::create({2});
  RemoteMemory memory = *RemoteMemory::open(getpid(), *segment);
  JointEntry of_reader{}, of_writer{};
  JointReader reader{of_reader, of_writer};
  JointWriter writer{of_writer, of_reader};
  std::vector<std::byte> source = payload_of(1, num_bytes), destination = payload_of(2, num_bytes);

  Outcome read(uint64_t number = 1) {
    return reader.copy({number, num_bytes}, memory, reinterpret_cast<uint64_t>(source.data()),
                       destination.data());
  }
  bool help(uint64_t number = 1) { return help({number, num_bytes}, source); }
  bool help(const JointMessage& message, const std::vector<std::byte>& from) {
    if (!writer.take(message)) return false;
    writer.write(message, from.data(), memory);
    return true;
  }
  bool is_copied() const { return destination == source; }
};

// A word as joint_copy.cc packs it.
uint64_t word(uint64_t number, uint64_t piece) { return number | piece << 52; }

HCCL_TEST(without_help_the_receiver_reads_all) {
  Joint joint;
  CHECK(!joint.help());  // it has not begun
  CHECK(joint.read() == Outcome::copied && joint.is_copied());
  CHECK(!joint.help());  // it has ended
}

HCCL_TEST(what_the_sender_has_written_is_not_read) {
  Joint joint;
  constexpr size_t num_taken = 4;
  joint.of_reader.destination = reinterpret_cast<uint64_t>(joint.destination.data());
  joint.of_reader.reads = word(1, num_taken);
  CHECK(joint.help() && joint.of_writer.wrote == word(1, num_taken));
  CHECK(!joint.help());  // nothing is left
  auto middle = [](auto& bytes) {
    return bytes.begin() + static_cast<ptrdiff_t>(num_taken * joint_piece_bytes);
  };
  CHECK(std::equal(middle(joint.source), joint.source.end(), middle(joint.destination)));
  CHECK(!std::equal(joint.source.begin(), middle(joint.source), joint.destination.begin()));
  std::vector<std::byte> original = joint.source;
  std::fill(middle(joint.source), joint.source.end(), std::byte{0});
  CHECK(joint.read() == Outcome::copied && joint.destination == original);
}

HCCL_TEST(the_receiver_waits_for_what_the_sender_took) {
  Joint joint;
  joint.of_writer.takes = word(1, 6);
  CHECK(joint.read() == Outcome::unfinished && joint.read() == Outcome::unfinished);
  CHECK(!joint.is_copied());
  joint.of_writer.wrote = word(1, num_pieces);  // it came too late, and left it
  CHECK(joint.read() == Outcome::copied && joint.is_copied());
}

HCCL_TEST(what_the_sender_cannot_write_the_receiver_reads) {
  Joint joint;
  joint.of_reader.destination = 16;
  joint.of_reader.reads = word(1, 0);
  CHECK(joint.help() && joint.of_writer.wrote == word(1, num_pieces));
  CHECK(!joint.help());  // it does not try again
  CHECK(joint.read() == Outcome::copied && joint.is_copied());
}

HCCL_TEST(words_of_other_messages_say_nothing) {
  Joint joint;
  joint.of_writer.takes = word(1, 0);
  joint.of_writer.wrote = word(1, 0);
  joint.of_reader.reads = word(1, 0);
  CHECK(!joint.help(2));
  CHECK(joint.read(2) == Outcome::copied && joint.is_copied());
}

HCCL_TEST(an_unreadable_source_is_told) {
  Joint joint;
  for (int attempt = 0; attempt < 2; ++attempt) {
    CHECK(joint.reader.copy({1, num_bytes}, joint.memory, 16, joint.destination.data()) ==
          Outcome::unreadable);
    CHECK(!joint.help());
  }
  CHECK(joint.reader.abandon() && !joint.help());
}

HCCL_TEST(a_sender_that_comes_too_late_writes_nothing) {
  constexpr uint64_t ended = 0xfff;
  for (uint64_t meanwhile : {word(1, ended), word(2, 1)}) {
    Joint joint;
    joint.of_reader.reads = word(1, 0);
    CHECK(joint.writer.take({1, num_bytes}));
    joint.of_reader.destination = reinterpret_cast<uint64_t>(joint.destination.data());
    joint.of_reader.reads = meanwhile;
    std::vector<std::byte> before = joint.destination;
    joint.writer.write({1, num_bytes}, joint.source.data(), joint.memory);
    CHECK(joint.destination == before);
    CHECK(joint.of_writer.wrote == word(1, num_pieces));
  }
}

// The next message is published before its receiver has ended the one before, and has other bytes.
HCCL_TEST(both_copy_at_once) {
  Joint joint;
  constexpr uint64_t num_messages = 4000;
  const std::vector<std::byte> sources[] = {payload_of(3, num_bytes),
                                            payload_of(4, min_joint_bytes + 1)};
  auto source_of = [&](uint64_t number) -> const std::vector<std::byte>& {
    return sources[number % 2];
  };
  std::atomic<uint64_t> released{0};
  std::atomic<bool> has_begun{false};
  uint64_t num_helped = 0;
  std::thread sender([&] {
    has_begun = true;
    for (uint64_t number; (number = released.load() + 1) <= num_messages;) {
      num_helped += joint.help({number, source_of(number).size()}, source_of(number));
    }
  });
  while (!has_begun) std::this_thread::yield();
  for (uint64_t number = 1; number <= num_messages; ++number) {
    const std::vector<std::byte>& source = source_of(number);
    std::fill(joint.destination.begin(), joint.destination.end(), std::byte{0});
    Outcome outcome;
    do {
      outcome =
          joint.reader.copy({number, source.size()}, joint.memory,
                            reinterpret_cast<uint64_t>(source.data()), joint.destination.data());
      if (outcome == Outcome::unfinished) std::this_thread::yield();
    } while (outcome == Outcome::unfinished);
    CHECK(outcome == Outcome::copied);
    CHECK(std::equal(source.begin(), source.end(), joint.destination.begin()));
    auto end = joint.destination.begin() + static_cast<ptrdiff_t>(source.size());
    CHECK(std::all_of(end, joint.destination.end(),
                      [](std::byte byte) { return byte == std::byte{0}; }));
    released.store(number);
  }
  sender.join();
  CHECK(num_helped > 0);
}

// A receiver that gives up may use its memory at once. It gives up at all moments of the sender's
// work.
HCCL_TEST(nothing_is_written_after_the_receiver_gave_up) {
  Joint joint;
  constexpr uint64_t num_messages = 30000;
  constexpr size_t short_bytes = min_joint_bytes;
  std::atomic<uint64_t> sent{1};
  uint64_t num_helped = 0;
  std::thread sender([&] {
    while (sent.load() <= num_messages) {
      num_helped += joint.help({sent.load(), short_bytes}, joint.source);
    }
  });
  const std::byte mark = ~joint.source[short_bytes - 1];
  volatile std::byte& last = joint.destination[short_bytes - 1];
  for (uint64_t number = 1; number <= num_messages; ++number) {
    // Nothing lies there: its first read fails.
    auto outcome =
        joint.reader.copy({number, short_bytes}, joint.memory, 16, joint.destination.data());
    CHECK(outcome == Outcome::unreadable);
    pass_time(number % 512);
    while (!joint.reader.abandon()) std::this_thread::yield();
    last = mark;
    pass_time(2000);
    CHECK(last == mark);
    sent.store(number + 1);
  }
  sender.join();
  CHECK(num_helped > 0 && last == mark);
}

HCCL_TEST(a_message_is_abandoned_once_its_sender_has_written) {
  Joint joint;
  CHECK(joint.reader.abandon());  // none is under way
  joint.of_writer.takes = word(1, 6);
  CHECK(joint.read() == Outcome::unfinished);
  CHECK(!joint.reader.abandon() && !joint.reader.abandon());
  joint.of_writer.wrote = word(1, 6);
  CHECK(joint.reader.abandon());
}

// A lane whose sender waits moves it while it is flushed; one whose sender does not leaves it
// alone.
HCCL_TEST(a_lane_helps_where_its_sender_waits) {
  for (bool sender_waits : {true, false}) {
    std::unique_ptr<Ends> ends = shm_lane_with_slots(65536);
    ShmLane &left = static_cast<ShmLane&>(*ends->left),
            &right = static_cast<ShmLane&>(*ends->right);
    for (ShmLane* lane : {&left, &right}) {
      lane->take_long_messages();
      CHECK(lane->read_from(getpid()));
    }
    std::vector<std::byte> source = payload_of(1, num_bytes), destination(num_bytes);
    left.post_send(
        {.length = num_bytes, .sender_waits = sender_waits, .copy_mode = CopyMode::single},
        source.data());
    CHECK(!left.flush() && !left.settled());
    JointEntry& of_reader = ends->segments[1]->joint_entry(0, 0);
    of_reader.destination = reinterpret_cast<uint64_t>(destination.data());
    of_reader.reads = word(1, 0);
    CHECK(left.flush() == sender_waits);
    CHECK((destination.back() == source.back() &&
           destination[num_bytes - 2] == source[num_bytes - 2]) == sender_waits);
    CHECK(right.peek() != nullptr && right.receive(destination.data()) && destination == source);
    right.release();
    CHECK(left.flush() && left.settled());
  }
}

}  // namespace
}  // namespace hccl::test
