// The flight recorder: what it remembers, what a reader in another thread gets, and whom the engine
// blames for waiting.
#include "engine/calls/recorder.h"

#include <numeric>

#include "ranks.h"

namespace hccl::test {
namespace {

struct Numbered : Request {
  explicit Numbered(uint64_t number) {
    sequence = number;
    call.fingerprint = number * 3;
    submitted = Deadline(std::chrono::nanoseconds(number * 10 + 1));
  }
};

void record(Recorder& recorder, uint64_t sequence) {
  Numbered request(sequence);
  recorder.open(request);
  recorder.start(request, sequence * 10 + 2);
  Waiting waiting{sequence % 2 ? sequence : 0, 0, static_cast<int>(sequence % 100)};
  recorder.end(request, CallState::completed, sequence * 10 + 3, waiting);
}

// All fields of one call, none of another.
void check_numbered(const CallRecord& record) {
  uint64_t n = record.sequence;
  CHECK(record.fingerprint == n * 3);
  CHECK(record.submitted_ns == n * 10 + 1);
  CHECK(record.id == n - 1);
  if (record.state >= CallState::started) CHECK(record.started_ns == n * 10 + 2);
  if (record.state != CallState::completed) return;
  CHECK(record.ended_ns == n * 10 + 3);
  CHECK(record.waiting.total_ns == (n % 2 ? n : 0));
  if (n % 2) CHECK(record.waiting.straggler == static_cast<int>(n % 100));
}

HCCL_TEST(what_is_open_fails_and_what_has_ended_stays) {
  Recorder recorder;
  record(recorder, 1);
  Numbered submitted(2), started(3);
  recorder.open(submitted);
  recorder.open(started);
  recorder.start(started, 32);
  recorder.fail_open();
  std::vector<CallRecord> records = recorder.records();
  CHECK(records[0].state == CallState::completed && records[0].ended_ns == 13);
  CHECK(records[1].state == CallState::failed && records[1].started_ns == 0);
  CHECK(records[2].state == CallState::failed && records[2].ended_ns > 0);
}

HCCL_TEST(a_reader_sees_whole_records_while_they_are_written) {
  Recorder recorder;
  std::atomic<bool> done{false};
  std::thread writer([&] {
    for (uint64_t n = 1; n <= 200000; ++n) record(recorder, n);
    done = true;
  });
  uint64_t num_read = 0;
  while (!done || num_read == 0) {
    uint64_t last = 0;
    for (const CallRecord& one : recorder.records()) {
      check_numbered(one);
      CHECK(one.sequence > last);
      last = one.sequence;
      ++num_read;
    }
  }
  writer.join();
  CHECK(num_read > 0);
}

std::shared_ptr<Plan> ring(int me, int n) {
  auto plan = std::make_shared<Plan>();
  plan->data_chunks = n;
  plan->peers = {(me + 1) % n, (me + n - 1) % n};
  auto chunk = [n](int i) { return ChunkRef{Buffer::data, (i + n) % n, (i + n) % n + 1, -1}; };
  for (int step = 0; step < n - 1; ++step) {
    plan->ops.push_back({OpKind::send, 0, 1, {}, chunk(me - step)});
    plan->ops.push_back({OpKind::recv_reduce, 1, 1, chunk(me - step - 1), {}});
  }
  for (int step = 0; step < n - 1; ++step) {
    plan->ops.push_back({OpKind::send, 0, 1, {}, chunk(me + 1 - step)});
    plan->ops.push_back({OpKind::recv, 1, 1, chunk(me - step), {}});
  }
  plan->validate(me, n);
  return plan;
}

void check_blame_on(const std::vector<int>& nodes) {
  World world(nodes);
  const int late = 2, n = world.size();
  const auto delay = std::chrono::milliseconds(150);
  world.run([&](int rank) {
    std::vector<float> data(1000, 1.0F);
    for (int round = 0; round < 3; ++round) {
      if (rank == late && round == 2) std::this_thread::sleep_for(delay);
      world.ranks[static_cast<size_t>(rank)]->run(all_reduce(ring(rank, n), data), no_interrupt);
    }
  });
  for (int rank = 0; rank < n; ++rank) {
    Communicator& engine = *world.ranks[static_cast<size_t>(rank)];
    CallRecord last = engine.recorder().records().back();
    CHECK(last.state == CallState::completed && last.sequence == 3);
    CHECK(last.bytes_in == 4000 && last.bytes_out == 4000);
    if (rank == late) continue;
    CHECK(last.waiting.straggler == late);
    CHECK(last.waiting.total_ns > 100'000'000);
    CHECK(engine.stragglers().of(late).waited_ns.value() > 100'000'000);
    CHECK(engine.stragglers().of(late).times_last.value() >= 1);
    CHECK(engine.stragglers().of(rank).waited_ns.value() == 0);
    const CallStatistics& counted = engine.statistics().calls[1];
    CHECK(counted.calls.value() == 3 && counted.waiting_ns.value() >= last.waiting.total_ns);
  }
}

// Every rank names the late one, its neighbours in the ring or not, on one node or several.
HCCL_TEST(the_blame_reaches_the_late_rank) {
  check_blame_on({0, 0, 0, 0});
  check_blame_on({0, 0, 1, 1});
  check_blame_on({0, 1, 2, 3, 4});
}

}  // namespace
}  // namespace hccl::test
