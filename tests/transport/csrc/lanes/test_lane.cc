// The conformance suite of lanes: what every provider promises, over each of them.
#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <string>

#include "lanes.h"

namespace {

std::atomic<size_t> largest_allocation{0};

}  // namespace

// Noted for the test below that bounds a lane's memory.
__attribute__((noinline)) void* operator new(size_t size) {
  if (size > largest_allocation) largest_allocation = size;
  void* memory = std::malloc(size);
  CHECK(memory != nullptr);
  return memory;
}
__attribute__((noinline)) void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, size_t) noexcept { operator delete(memory); }

namespace hccl::test {
namespace {

// Around what is inline in shared memory (88), what tcp copies at once (a quarter of a slot) and reads
// ahead (4096), a slot.
const std::vector<size_t> sizes = {0,    1,    63,   64,   65,   87,   88,             89,
                                   2047, 2048, 2049, 4095, 4096, 4097, slot_bytes - 1, slot_bytes};

size_t size_of_message(uint64_t number) { return sizes[number * 7 % sizes.size()]; }

How how_of(uint64_t number) { return number % 3 ? How::receive : How::lend; }

template <typename Action>
bool throws_lane_error(Action action) {
  try {
    action();
  } catch (const LaneError&) {
    return true;
  }
  return false;
}

void every_size_arrives_whole(const Provider& provider) {
  auto lane = provider.connect();
  Inbox inbox(*lane->right);
  for (How how : {How::receive, How::lend}) {
    for (size_t i = 0; i < sizes.size(); ++i) {
      auto payload = payload_of(i, sizes[i]);
      lane->left->post_send(header_of(i, sizes[i]), payload.data());
      Patience patience;
      while (!inbox.take(i, sizes[i], how)) {
        lane->left->flush();
        patience.turn();
      }
      CHECK(lane->left->flushed());
    }
  }
  CHECK(lane->right->peek() == nullptr);
}

// One end of a conversation: posts all its messages at once, frees each payload as soon as the lane
// says so, and checks what comes.
class Talker {
 public:
  Talker(Lane& lane, uint64_t num_messages)
      : lane_(lane), inbox_(lane), num_messages_(num_messages) {}

  void post_all() {
    for (uint64_t i = 0; i < num_messages_; ++i) {
      borrowed_.push_back(payload_of(i, size_of_message(i)));
      uint64_t number =
          lane_.post_send(header_of(i, size_of_message(i)), borrowed_.back().data());
      CHECK(number == i + 1);
      free_completed();
    }
  }

  // True once everything was sent and received.
  bool turn() {
    lane_.flush();
    free_completed();
    while (received_ < num_messages_ &&
           inbox_.take(received_, size_of_message(received_), how_of(received_))) {
      ++received_;
    }
    // Nothing more brings an acknowledgement along.
    if (lane_.flushed() && received_ == num_messages_) lane_.detach();
    return borrowed_.empty() && lane_.flushed() && received_ == num_messages_;
  }

 private:
  // Overwritten first, so that a lane which still reads it sends the wrong bytes.
  void free_completed() {
    while (freed_ < lane_.completed()) {
      std::fill(borrowed_.front().begin(), borrowed_.front().end(), std::byte{0xee});
      borrowed_.pop_front();
      ++freed_;
    }
  }

  Lane& lane_;
  Inbox inbox_;
  const uint64_t num_messages_;
  std::deque<std::vector<std::byte>> borrowed_;
  uint64_t freed_ = 0;
  uint64_t received_ = 0;
};

void both_full_sides_come_free_again(const Provider& provider) {
  auto lane = provider.connect();
  Talker left(*lane->left, 3000), right(*lane->right, 3000);
  left.post_all();
  right.post_all();
  CHECK(!lane->left->flushed() && !lane->right->flushed());
  Patience patience;
  for (;;) {
    bool left_done = left.turn(), right_done = right.turn();
    if (left_done && right_done) break;
    patience.turn();
  }
}

void two_threads_talk_at_once(const Provider& provider) {
  auto lane = provider.connect();
  auto talk = [](Lane& end) {
    Talker talker(end, 3000);
    talker.post_all();
    Patience patience;
    while (!talker.turn()) patience.turn();
  };
  std::thread other([&] { talk(*lane->left); });
  talk(*lane->right);
  other.join();
}

void a_detached_payload_may_change(const Provider& provider) {
  auto lane = provider.connect();
  Inbox inbox(*lane->right);
  std::deque<std::vector<std::byte>> payloads;
  auto post = [&] {
    uint64_t i = payloads.size();
    payloads.push_back(payload_of(i, slot_bytes));
    return lane->left->post_send(header_of(i, slot_bytes), payloads.back().data());
  };
  while (lane->left->flushed()) post();
  post();
  // The last two at least wait: half-way on a stream, or for a slot in shared memory.
  uint64_t before = lane->left->completed();
  CHECK(before <= payloads.size() - 2);
  uint64_t detached = before;
  for (;; ++detached) {
    lane->left->detach();
    if (lane->left->completed() == detached) break;
    CHECK(lane->left->completed() == detached + 1);
    auto& payload = payloads[static_cast<size_t>(detached)];
    std::fill(payload.begin(), payload.end(), std::byte{0xee});
  }
  // One message of its own a lane can hold, and only a few.
  CHECK(detached > before && detached <= before + 4);
  CHECK(post() == payloads.size());
  Patience patience;
  for (uint64_t i = 0; i < payloads.size();) {
    lane->left->flush();
    if (inbox.take(i, slot_bytes, how_of(i))) ++i;
    patience.turn();
  }
  while (!lane->left->settled()) {
    lane->left->flush();
    lane->left->detach();
    patience.turn();
  }
  CHECK(lane->left->completed() == payloads.size());
  lane->left->detach();
  CHECK(lane->left->completed() == payloads.size());
}

// A lane whose other end is the test's own socket.
struct RawLane {
  Statistics statistics;
  std::unique_ptr<TcpLane> lane;

  explicit RawLane(std::array<int, 2> ends) {
    TcpOptions options;
    options.slot_bytes = slot_bytes;
    std::vector<std::shared_ptr<Stream>> connection = {stream_on(ends[1])};
    lane = std::make_unique<TcpLane>(4, std::move(connection), options, statistics);
  }

  // The lane's message `number`, counted from 0, in the connection's frame `number`.
  static std::vector<std::byte> frame_of(uint64_t number, const Header& header,
                                         const std::vector<std::byte>& payload) {
    Frame frame;
    frame.serial = static_cast<uint32_t>(number);
    frame.sequence = number + 1;
    frame.header = header;
    std::vector<std::byte> bytes(sizeof frame);
    std::memcpy(bytes.data(), &frame, sizeof frame);
    bytes.insert(bytes.end(), payload.begin(), payload.end());
    return bytes;
  }
};

void what_was_sent_before_closing_arrives(const Provider& provider) {
  if (!provider.notices_closing) return;
  auto lane = provider.connect();
  Inbox inbox(*lane->right);
  for (uint64_t i : {0, 1, 2}) {
    lane->left->post_send(header_of(i, 5000), payload_of(i, 5000).data());
  }
  CHECK(lane->left->flushed());
  lane->left.reset();
  Patience patience;
  for (uint64_t i = 0; i < 3;) {
    if (inbox.take(i, 5000, how_of(i))) ++i;
    patience.turn();
  }
  CHECK(throws_lane_error([&] {
    for (;;) {
      lane->right->peek();
      patience.turn();
    }
  }));
  CHECK(throws_lane_error([&] {
    auto payload = payload_of(0, slot_bytes);
    for (;;) {
      lane->right->post_send(header_of(0, slot_bytes), payload.data());
      patience.turn();
    }
  }));
}

void frames_may_come_byte_by_byte() {
  for (How how : {How::receive, How::lend}) {
    std::array<int, 2> ends = unix_sockets();
    RawLane raw(ends);
    Inbox inbox(*raw.lane);
    std::vector<std::byte> stream;
    const std::vector<size_t> few = {0, 1, 88, 300, 0, 5000};
    for (size_t i = 0; i < few.size(); ++i) {
      auto frame = raw.frame_of(i, header_of(i, few[i]), payload_of(i, few[i]));
      stream.insert(stream.end(), frame.begin(), frame.end());
    }
    uint64_t received = 0;
    for (std::byte byte : stream) {
      CHECK(::send(ends[0], &byte, 1, 0) == 1);
      while (received < few.size() && inbox.take(received, few[received], how)) ++received;
    }
    CHECK(received == few.size());
    ::close(ends[0]);
  }
}

void malformed_shared_memory_is_refused() {
  auto cell_of = [](Ends& lane) -> Cell& { return *lane.segments[0]->ring(1, 0); };
  struct {
    int slot;
    uint32_t length;
  } cases[] = {{-1, inline_bytes + 1}, {0, slot_bytes + 1}, {3, 1}, {1 << 30, 1}};
  for (auto bad : cases) {
    auto lane = shm_lane();
    lane->left->post_send(header_of(0, 8), payload_of(0, 8).data());
    cell_of(*lane).slot = bad.slot;
    cell_of(*lane).header.length = bad.length;
    CHECK(throws_lane_error([&] { lane->right->peek(); }));
  }
  auto lane = shm_lane();
  lane->segments[1]->consumed(0, 0).count.store(1);
  auto payload = payload_of(0, slot_bytes);
  CHECK(throws_lane_error(
      [&] { lane->left->post_send(header_of(0, slot_bytes), payload.data()); }));
}

void a_peeked_message_in_shared_memory_stays_what_it_was() {
  auto lane = shm_lane();
  lane->left->post_send(header_of(0, 8), payload_of(0, 8).data());
  CHECK(lane->right->peek()->length == 8);
  Cell& cell = *lane->segments[0]->ring(1, 0);
  cell.slot = 1 << 30;
  cell.header.length = 1 << 30;
  cell.sequence.store(77);
  CHECK(lane->right->peek()->length == 8);
  std::byte got[8];
  CHECK(lane->right->receive(got));
  CHECK(std::memcmp(got, payload_of(0, 8).data(), 8) == 0);
  lane->right->release();
  CHECK(lane->right->peek() == nullptr);
}

// Rank 0 with lanes to ranks 1 to 3, all in shared memory.
struct Star {
  static constexpr int n = 4;
  Statistics statistics;
  std::shared_ptr<Segment> segments[n];
  std::vector<std::shared_ptr<Outbox>> outboxes;
  std::vector<std::unique_ptr<ShmLane>> out, in;
  std::vector<Inbox> inboxes;

  explicit Star(int num_slots) {
    SegmentShape shape{n, 1, num_slots, slot_bytes};
    for (auto& segment : segments) {
      segment = Segment::create(shape);
      outboxes.push_back(std::make_shared<Outbox>(segment, 0));
    }
    for (int peer = 1; peer < n; ++peer) {
      out.push_back(connect(0, peer));
      in.push_back(connect(peer, 0));
      inboxes.emplace_back(*in.back());
    }
  }

  std::unique_ptr<ShmLane> connect(int me, int peer) {
    size_t i = static_cast<size_t>(me), j = static_cast<size_t>(peer);
    auto bell = std::make_shared<Doorbell>(segments[j], new_event(), statistics);
    ShmLane::Ends ends{segments[i], segments[j], me, peer, bell, 0};
    return std::make_unique<ShmLane>(peer, ends, outboxes[i], statistics);
  }
};

}  // namespace
}  // namespace hccl::test

int main() {
  using namespace hccl::test;
  struct {
    const char* name;
    void (*run)(const Provider&);
  } conformance[] = {
      {"every_size_arrives_whole", every_size_arrives_whole},
      {"both_full_sides_come_free_again", both_full_sides_come_free_again},
      {"two_threads_talk_at_once", two_threads_talk_at_once},
      {"a_detached_payload_may_change", a_detached_payload_may_change},
      {"what_was_sent_before_closing_arrives", what_was_sent_before_closing_arrives},
  };
  for (const Provider& provider : providers) {
    for (auto& test : conformance) {
      std::printf("%s: %s\n", provider.name, test.name);
      std::fflush(stdout);
      test.run(provider);
    }
  }
  const Test tests[] = {
      {"frames_may_come_byte_by_byte", frames_may_come_byte_by_byte},
      {"malformed_shared_memory_is_refused", malformed_shared_memory_is_refused},
      {"a_peeked_message_in_shared_memory_stays_what_it_was",
       a_peeked_message_in_shared_memory_stays_what_it_was},
  };
  run_tests(tests);
}
