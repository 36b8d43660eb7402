// Payloads in registered memory over lanes on queue pairs: who copies, who borrows, until when.
#include <cstring>
#include <vector>

#include "lanes.h"

namespace hccl::test {
namespace {

constexpr uint16_t copied = 0xffff;
constexpr size_t size = 4096;

struct Fixture {
  std::unique_ptr<Ends> ends = queue_pair_lane({loopback_underlying_lanes()}, 1024);
  Lane& left = *ends->left;
  Lane& right = *ends->right;
  std::vector<std::byte> source = payload_of(1, size), target = std::vector<std::byte>(size);

  uint64_t copies() const { return ends->statistics.verbs.copies.value(); }
  uint64_t reads() const { return ends->statistics.verbs.reads.value(); }
  static Header header_of(size_t length, uint16_t kind, bool is_only_moved) {
    return {.length = static_cast<uint32_t>(length),
            .kind = kind,
            .is_only_moved = is_only_moved,
            .wants_reply = kind > 0};
  }
  template <class Done>
  void turn_until(Done done) {
    Patience patience;
    while (!done()) {
      left.flush();
      right.flush();
      patience.turn();
    }
  }
  void await_message(Lane& at) {
    turn_until([&] { return at.peek() != nullptr; });
  }
  // The left end sends its source, and asks for an answer of as many bytes into it.
  void ask(bool is_only_moved) {
    left.post_send(header_of(size, 1, is_only_moved), source.data());
    await_message(right);
    turn_until([&] { return right.lend() != nullptr; });
    right.release();
  }
  void answer(const std::vector<std::byte>& payload, bool is_only_moved) {
    right.post_send(header_of(payload.size(), copied, is_only_moved), payload.data());
    await_message(left);
  }
};

HCCL_TEST(what_nobody_reduces_is_read_by_its_receiver_and_copied_by_no_one) {
  Fixture f;
  CHECK(f.left.post_send(f.header_of(size, 0, true), f.source.data()) == 1);
  f.await_message(f.right);
  CHECK(f.left.completed() == 0 && !f.left.settled());
  f.turn_until([&] { return f.right.receive(f.target.data()); });
  CHECK(f.target == f.source && f.copies() == 0 && f.reads() == 1);
  f.left.flush();
  CHECK(f.left.completed() == 0);  // the receiver has not released it
  f.right.release();
  f.turn_until([&] { return f.left.completed() == 1; });
  CHECK(f.left.settled());
}

HCCL_TEST(an_announced_payload_can_be_lent_out_of_its_slot) {
  Fixture f;
  f.left.post_send(f.header_of(size, 0, true), f.source.data());
  f.await_message(f.right);
  const std::byte* lent = nullptr;
  f.turn_until([&] { return (lent = f.right.lend()) != nullptr; });
  CHECK(std::memcmp(lent, f.source.data(), size) == 0 && f.copies() == 0 && f.reads() == 1);
  f.right.release();
}

HCCL_TEST(what_is_reduced_or_overwritten_is_gathered_and_back_when_it_has_left) {
  for (bool is_only_moved : {false, true}) {
    Fixture f;
    f.left.post_send(f.header_of(size, is_only_moved ? copied : 0, is_only_moved), f.source.data());
    // Without the receiver's doing.
    f.turn_until([&] { return f.left.completed() == 1; });
    CHECK(f.left.settled());
    f.await_message(f.right);
    CHECK(std::memcmp(f.right.lend(), f.source.data(), size) == 0);
    CHECK(f.copies() == 0 && f.reads() == 0);
    f.right.release();
  }
}

HCCL_TEST(an_answer_is_written_to_where_it_was_asked_for) {
  for (bool is_only_moved : {false, true}) {
    Fixture f;
    f.ask(is_only_moved);
    auto answer = payload_of(2, size), other = payload_of(3, size);
    f.answer(answer, is_only_moved);
    CHECK(f.source == answer);
    CHECK(f.left.receive(f.source.data()) && f.copies() == 0);
    f.left.release();
    // It was for one message.
    f.answer(other, is_only_moved);
    f.turn_until([&] { return f.right.settled(); });
    CHECK(f.source == answer);
    f.left.release();
  }
}

HCCL_TEST(an_answer_of_another_length_takes_a_slot) {
  Fixture f;
  f.ask(false);
  auto before = f.source, answer = payload_of(2, size / 2);
  f.answer(answer, false);
  CHECK(f.source == before && std::memcmp(f.left.lend(), answer.data(), size / 2) == 0);
  f.left.release();
}

HCCL_TEST(memory_of_a_failed_communicator_is_out_of_reach) {
  Fixture f;
  f.left.post_send(f.header_of(size, 0, true), f.source.data());
  f.await_message(f.right);
  f.left.abandon();
  std::fill(f.source.begin(), f.source.end(), std::byte{0xee});
  CHECK(throws<LaneError>([&] { f.turn_until([&] { return f.right.receive(f.target.data()); }); }));
  CHECK(throws<LaneError>([&] { f.left.peek(); }));
}

}  // namespace
}  // namespace hccl::test
