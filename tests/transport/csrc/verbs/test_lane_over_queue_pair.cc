// The lane over a queue pair that does what the test says: malformed peers, and queue pairs that
// fail. What every lane promises is tested by lanes/test_lane.cc, over software queue pairs.
#include <chrono>
#include <functional>

#include "scripted_queue_pair.h"

namespace hccl::test {
namespace {

using namespace scripted;

struct Fixture {
  Statistics statistics;
  std::shared_ptr<ScriptedQueuePair> pair = std::make_shared<ScriptedQueuePair>();
  std::unique_ptr<LaneOverQueuePair> lane = make_lane({{pair}}, statistics);
  Advertisement theirs;

  Fixture() {
    const auto* mine = reinterpret_cast<const Advertisement*>(pair->advertised_to) - 1;
    theirs = *mine;
    theirs.rkey = 77;
  }
  // The text of the LaneError, which names the peer.
  std::string error_of_peek() {
    try {
      lane->peek();
    } catch (const LaneError& error) {
      CHECK(error.peer() == 3);
      return error.what();
    }
    return {};
  }
  bool fails_with(const char* text) { return error_of_peek().find(text) != std::string::npos; }
};

HCCL_TEST(nothing_is_written_before_the_peer_has_advertised) {
  Fixture fixture;
  std::byte payload[8] = {};
  fixture.lane->post_send(header_of(8), payload);
  CHECK(!fixture.lane->flushed() && fixture.pair->sent.size() == 1);
  fixture.pair->advertise(fixture.theirs);
  CHECK(fixture.lane->flush() && fixture.lane->flushed());
  CHECK(fixture.pair->sent.back().rkey == 77);
  CHECK(fixture.pair->sent.back().opcode == Opcode::rdma_write_with_imm);
}

HCCL_TEST(small_messages_go_inline_and_the_end_of_a_lane_closes_its_queue_pair) {
  Fixture fixture;
  fixture.pair->inline_bytes = sizeof(Header) + 8;
  fixture.pair->advertise(fixture.theirs);
  std::byte payload[9] = {};
  fixture.lane->post_send(header_of(8), payload);
  CHECK(fixture.pair->sent.back().flags & send_inline);
  fixture.lane->post_send(header_of(9), payload);
  CHECK(!(fixture.pair->sent.back().flags & send_inline));
  fixture.lane.reset();
  CHECK(fixture.pair->closed);
}

HCCL_TEST(only_the_slots_are_open_to_the_peer) {
  Fixture fixture;
  CHECK(fixture.pair->regions.size() == 2);
  const MemoryRegion &open = fixture.pair->regions[0], &own = fixture.pair->regions[1];
  CHECK((open.access & access_remote_write) && !(own.access & access_remote_write));
  // Nothing is registered twice.
  CHECK(open.address + open.length == own.address && own.address % 4096 == 0);
  CHECK(open.length >= 8 * stride && open.length < 8 * stride + 4096);
  CHECK(own.length >= 4 * stride && own.length < 4 * stride + 2 * 4096);
  CHECK(fixture.pair->num_recvs == LaneSlots::attributes().max_recv_wr);
}

HCCL_TEST(a_sender_stops_at_its_last_credit) {
  Fixture fixture;
  fixture.pair->advertise(fixture.theirs);
  std::byte payload[8] = {};
  for (int i = 0; i < 9; ++i) fixture.lane->post_send(header_of(8), payload);
  CHECK(fixture.lane->completed() == 4 && !fixture.lane->flushed());
  for (uint64_t ended : {2, 4, 6, 8}) {  // its slots here are free again
    CHECK(fixture.pair->sent[ended].flags & send_signaled);
    CHECK(!(fixture.pair->sent[ended - 1].flags & send_signaled));
    fixture.pair->complete(Opcode::rdma_write_with_imm, 0, 0, ended);
    fixture.lane->flush();
  }
  CHECK(fixture.lane->completed() == 8 && !fixture.lane->flush());
  fixture.pair->complete(Opcode::recv_rdma_with_imm, 0, 1);  // and one at the peer
  CHECK(fixture.lane->flush() && fixture.lane->flushed());
}

HCCL_TEST(credits_go_back_by_themselves_and_again_when_the_queue_was_full) {
  Fixture fixture;
  fixture.pair->advertise(fixture.theirs);
  fixture.pair->full = true;
  for (uint64_t i = 0; i < 4; ++i) {
    fixture.pair->deliver(i, header_of(0), sizeof(Header));
    CHECK(fixture.lane->peek() != nullptr);
    fixture.lane->release();
  }
  CHECK(fixture.pair->sent.size() == 1);
  fixture.pair->full = false;
  CHECK(fixture.lane->peek() == nullptr);
  CHECK(fixture.pair->sent.size() == 2 && fixture.pair->sent.back().imm == 4);
}

HCCL_TEST(what_came_before_a_failure_is_received) {
  Fixture fixture;
  fixture.pair->advertise(fixture.theirs);
  fixture.pair->deliver(0, header_of(5), sizeof(Header) + 5);
  fixture.pair->fail(Status::retry_exceeded);
  CHECK(fixture.lane->peek() != nullptr && fixture.lane->peek()->length == 5);
  fixture.lane->release();
  CHECK(fixture.fails_with("the test says so"));
  CHECK(throws<LaneError>([&] { fixture.lane->post_send(header_of(0), nullptr); }));
}

HCCL_TEST(an_end_that_only_waits_probes_its_peer_once_at_a_time) {
  Fixture fixture;
  fixture.pair->advertise(fixture.theirs);
  size_t before = fixture.pair->sent.size();
  auto until = VerbsClock::now() + std::chrono::seconds(20);
  auto wait = [&] {
    CHECK(fixture.lane->peek() == nullptr);
    Sleep sleep(Sleeper::caller);
    fixture.lane->prepare_sleep(sleep);
    sleep.wait(10);
  };
  while (fixture.pair->sent.size() == before && VerbsClock::now() < until) wait();
  CHECK(fixture.pair->sent.size() == before + 1);
  SendRequest probe = fixture.pair->sent.back();
  CHECK(probe.opcode == Opcode::rdma_write && probe.pieces.empty() && probe.rkey == 77);
  CHECK(probe.flags == send_signaled);
  auto later = VerbsClock::now() + std::chrono::milliseconds(1500);
  while (VerbsClock::now() < later) wait();
  CHECK(fixture.pair->sent.size() == before + 1);
  // Its completion is not taken for that of a message.
  std::byte payload[8] = {};
  for (int i = 0; i < 4; ++i) fixture.lane->post_send(header_of(8), payload);
  fixture.pair->complete(Opcode::rdma_write, 0, 0, probe.wr_id);
  fixture.pair->complete(Opcode::recv_rdma_with_imm, 0, 4);
  fixture.lane->post_send(header_of(8), payload);
  CHECK(!fixture.lane->flushed());
}

HCCL_TEST(a_malformed_peer_fails_the_lane) {
  const std::function<void(Fixture&)> cases[] = {
      [](Fixture& f) { f.theirs.magic = 0, f.pair->advertise(f.theirs); },
      [](Fixture& f) { f.theirs.slot_bytes = 512, f.pair->advertise(f.theirs); },
      [](Fixture& f) { f.theirs.num_slots = 9, f.pair->advertise(f.theirs); },
      [](Fixture& f) { f.theirs.address = 0, f.pair->advertise(f.theirs); },
      [](Fixture& f) { f.pair->advertise(f.theirs), f.pair->advertise(f.theirs); },
      [](Fixture& f) { f.pair->complete(Opcode::recv, 3); },
      [](Fixture& f) { f.pair->complete(Opcode::recv_rdma_with_imm, 0, 1); },  // a credit too many
      [](Fixture& f) { f.pair->deliver(0, header_of(slot_bytes + 1), 2000); },
      [](Fixture& f) { f.pair->deliver(0, header_of(5), sizeof(Header) + 6); },
      [](Fixture& f) { f.pair->deliver(0, header_of(0), 0); },
      // Forms whose lengths do not fit, and an answer that nobody asked for.
      [](Fixture& f) { f.pair->deliver(0, header_of(5), sizeof(Header) + 5, gathered); },
      [](Fixture& f) { f.pair->deliver(0, header_of(5), sizeof(Header) + 5, announced); },
      [](Fixture& f) { f.pair->deliver(0, header_of(5), sizeof(Header), answered); },
      // There is nothing to read, and a slot that is written to already.
      [](Fixture& f) {
        f.pair->deliver(0, header_of(0), sizeof(Header) + sizeof(Note), announced);
      },
      [](Fixture& f) {
        for (int i : {0, 0}) {
          f.pair->deliver(static_cast<uint64_t>(i), header_of(0), sizeof(Header));
        }
        if (f.lane->peek() != nullptr) f.lane->release();
      },
  };
  for (const auto& spoil : cases) {
    Fixture fixture;
    spoil(fixture);
    CHECK(!fixture.error_of_peek().empty());
  }
  Fixture fixture;
  fixture.pair->advertise(fixture.theirs);
  for (uint64_t i = 0; i < 9; ++i) fixture.pair->deliver(i, header_of(0), sizeof(Header));
  for (int i = 0; i < 8; ++i) {
    CHECK(fixture.lane->peek() != nullptr);
    fixture.lane->release();
  }
  CHECK(fixture.fails_with("without a credit"));
}

HCCL_TEST(a_peeked_header_stays_what_it_was) {
  Fixture fixture;
  fixture.pair->advertise(fixture.theirs);
  fixture.pair->deliver(0, header_of(5), sizeof(Header) + 5);
  CHECK(fixture.lane->peek()->length == 5);
  Header other = header_of(1 << 30);
  std::memcpy(fixture.pair->slot(0), &other, sizeof other);
  CHECK(fixture.lane->peek()->length == 5);
}

HCCL_TEST(messages_take_turns_on_queue_pairs_and_arrive_in_order) {
  Statistics statistics;
  auto first = std::make_shared<ScriptedQueuePair>(),
       second = std::make_shared<ScriptedQueuePair>();
  auto lane = make_lane({{first, second}}, statistics);
  for (auto& pair : {first, second}) {
    const auto* mine = reinterpret_cast<const Advertisement*>(pair->advertised_to) - 1;
    pair->advertise(*mine);
  }
  std::byte payload[8] = {};
  for (int i = 0; i < 4; ++i) lane->post_send(header_of(8), payload);
  // An advertisement and two messages each.
  CHECK(first->sent.size() == 3 && second->sent.size() == 3);
  // The second message is there, the first one is not. Both pairs write to the slots of the first.
  for (uint32_t number : {1, 0}) {
    Header header = header_of(number + 1);
    std::memcpy(first->slot(number), &header, sizeof header);
    ScriptedQueuePair& pair = number == 1 ? *second : *first;
    pair.complete(Opcode::recv_rdma_with_imm, sizeof header + number + 1,
                  message_bit | number_bits(number) | number);
    if (number == 1) CHECK(lane->peek() == nullptr);
  }
  for (uint32_t number : {0, 1}) {
    CHECK(lane->peek() != nullptr && lane->peek()->length == number + 1);
    lane->release();
  }
  // The credit of the first message came after that of the second, and took nothing back.
  for (int i = 0; i < 5; ++i) lane->post_send(header_of(8), payload);
  for (uint64_t ended : {4, 8}) {
    for (auto& pair : {first, second}) pair->complete(Opcode::rdma_write_with_imm, 0, 0, ended);
    lane->flush();
  }
  CHECK(lane->flushed() && lane->completed() == 9);
}

HCCL_TEST(one_failed_queue_pair_ends_the_lane) {
  Statistics statistics;
  auto first = std::make_shared<ScriptedQueuePair>(),
       second = std::make_shared<ScriptedQueuePair>();
  auto lane = make_lane({{first, second}}, statistics);
  second->fail(Status::retry_exceeded);
  CHECK(throws<LaneError>([&] { lane->peek(); }));
}

}  // namespace
}  // namespace hccl::test
