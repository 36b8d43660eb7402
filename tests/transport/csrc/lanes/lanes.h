// Two ends of one lane in one process, of every provider, and messages whose bytes are known.
#pragma once

#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <deque>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "check.h"
#include "lanes/shared_memory/shm.h"
#include "lanes/tcp.h"
#include "progress/progress_thread.h"
#include "rdma_lane.h"
#include "verbs/lane/lane_over_queue_pair.h"
#include "verbs/software/queue_pair.h"

namespace hccl::test {

inline constexpr size_t slot_bytes = 8192;

// The one of this process, which ends with it.
inline const std::shared_ptr<ProgressThread>& progress() {
  struct Owner {
    std::shared_ptr<ProgressThread> thread = std::make_shared<ProgressThread>();
    ~Owner() { thread->stop(); }  // what it drives holds it too
  };
  static const Owner owner;
  return owner.thread;
}

struct Ends {
  Statistics statistics;
  std::shared_ptr<Segment> segments[2];    // shared memory only, writable
  std::shared_ptr<Distance> distances[2];  // shared memory only
  std::shared_ptr<Outbox> outboxes[2];     // shared memory only
  LaneSlots::Pairs pairs[2];               // of queue pairs only: of the left and of the right end
  std::unique_ptr<Lane> left, right;
};

inline std::unique_ptr<Ends> shm_lane_with_slots(size_t bytes_of_slot, int num_slots = 3) {
  auto lane = std::make_unique<Ends>();
  SegmentShape shape{2, 1, num_slots, bytes_of_slot};
  for (int end : {0, 1}) {
    lane->segments[end] = Segment::create(shape);
    lane->distances[end] = std::make_shared<Distance>();
    lane->outboxes[end] = std::make_shared<Outbox>(lane->segments[end], 0, lane->distances[end]);
  }
  std::unique_ptr<Lane>* ends[] = {&lane->left, &lane->right};
  for (int me : {0, 1}) {
    int peer = 1 - me;
    auto theirs = Segment::open(duplicate(lane->segments[peer]->fd()), shape);
    auto bell = std::make_shared<Doorbell>(theirs, new_event(), lane->statistics);
    ShmLane::Ends described{lane->segments[me], theirs, me, peer, bell, 0};
    *ends[me] = std::make_unique<ShmLane>(peer, described, lane->outboxes[me], lane->statistics);
  }
  return lane;
}

inline std::unique_ptr<Ends> shm_lane() { return shm_lane_with_slots(slot_bytes); }

inline std::array<int, 2> unix_sockets() {
  std::array<int, 2> ends;
  CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends.data()) == 0);
  return ends;
}

// `dialler`: the address of the first one, a loopback address as the other one's.
inline std::array<int, 2> tcp_sockets(uint32_t dialler = INADDR_LOOPBACK) {
  int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  auto* generic = reinterpret_cast<sockaddr*>(&address);
  CHECK(bind(listener, generic, size) == 0 && listen(listener, 1) == 0);
  CHECK(getsockname(listener, generic, &size) == 0);
  int dialled = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in source{};
  source.sin_family = AF_INET;
  source.sin_addr.s_addr = htonl(dialler);
  CHECK(bind(dialled, reinterpret_cast<sockaddr*>(&source), sizeof source) == 0);
  CHECK(connect(dialled, generic, size) == 0);
  int accepted = accept4(listener, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
  CHECK(accepted >= 0 && fcntl(dialled, F_SETFL, O_NONBLOCK) == 0);
  ::close(listener);
  for (int fd : {dialled, accepted}) {
    int yes = 1;
    CHECK(setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes) == 0);
  }
  return {dialled, accepted};
}

inline std::shared_ptr<Stream> stream_on(int fd) {
  return std::make_shared<SocketStream>(Descriptor(fd));
}

// Small buffers, so that a few messages fill them.
inline std::unique_ptr<Ends> socket_lane(std::vector<std::array<int, 2>> paths,
                                         bool checksum = false) {
  std::vector<std::shared_ptr<Stream>> connections[2];
  for (const auto& ends : paths) {
    for (size_t end : {0, 1}) {
      int size = 65536, fd = ends[end];
      CHECK(setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &size, sizeof size) == 0);
      CHECK(setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &size, sizeof size) == 0);
      connections[end].push_back(stream_on(fd));
    }
  }
  TcpOptions options;
  options.slot_bytes = slot_bytes;
  options.checksum = checksum;
  auto lane = std::make_unique<Ends>();
  lane->left = std::make_unique<TcpLane>(1, std::move(connections[0]), options, lane->statistics);
  lane->right = std::make_unique<TcpLane>(0, std::move(connections[1]), options, lane->statistics);
  return lane;
}

using UnderlyingLanes = std::array<std::shared_ptr<UnderlyingLane>, 2>;

// A lane over software queue pairs over lanes, one each, path by path. `min_registered_bytes`:
// payloads of as many are not copied; 0: all are.
inline std::unique_ptr<Ends> queue_pair_paths(std::vector<std::vector<UnderlyingLanes>> under,
                                              size_t min_registered_bytes = 0) {
  auto lane = std::make_unique<Ends>();
  auto end = [&](int peer) {
    std::vector<LaneSlots::Pairs> paths;
    LaneOverQueuePair::Memories memories;
    for (std::vector<UnderlyingLanes>& of_path : under) {
      LaneSlots::Pairs& pairs = paths.emplace_back();
      for (UnderlyingLanes& lanes : of_path) {
        auto pair = QueuePair::connected(progress(), lanes[static_cast<size_t>(1 - peer)],
                                         LaneSlots::attributes());
        lane->pairs[1 - peer].push_back(pair);
        if (pairs.empty()) memories.push_back(std::make_shared<AllRegistered>(pair));
        pairs.push_back(std::move(pair));
      }
    }
    auto slots = std::make_unique<LaneSlots>(std::move(paths), slot_bytes);
    auto made = std::make_unique<LaneOverQueuePair>(peer, std::move(slots), lane->statistics);
    if (min_registered_bytes > 0) {
      made->set_registered(std::move(memories), LaneOverQueuePair::Traffic::collectives,
                           min_registered_bytes);
    }
    return made;
  };
  lane->left = end(1);
  lane->right = end(0);
  return lane;
}

// The same with one path.
inline std::unique_ptr<Ends> queue_pair_lane(std::vector<UnderlyingLanes> under,
                                             size_t min_registered_bytes = 0) {
  return queue_pair_paths({std::move(under)}, min_registered_bytes);
}

inline std::array<std::shared_ptr<UnderlyingLane>, 2> tcp_underlying_lanes() {
  std::array<int, 2> ends = tcp_sockets();
  return {tcp_underlying_lane(Descriptor(ends[0])), tcp_underlying_lane(Descriptor(ends[1]))};
}

struct Provider {
  const char* name;
  std::unique_ptr<Ends> (*connect)();
  bool notices_closing;
  bool copies = true;  // a payload that has left may change, even if the receiver has not come yet
};

// Both ends on the device that HCCL_TEST_RDMA names.
inline std::unique_ptr<Ends> rdma_lane(size_t num_pairs, size_t min_registered_bytes = 0) {
  auto lane = std::make_unique<Ends>();
  RdmaEnd left(*rdma_port(), num_pairs, slot_bytes), right(*rdma_port(), num_pairs, slot_bytes);
  left.attach(right.describe());
  right.attach(left.describe());
  lane->left = left.start(1, lane->statistics, min_registered_bytes);
  lane->right = right.start(0, lane->statistics, min_registered_bytes);
  return lane;
}

inline const Provider software_providers[] = {
    {"shm", shm_lane, false},
    {"socketpair", [] { return socket_lane({unix_sockets()}); }, true},
    {"tcp", [] { return socket_lane({tcp_sockets()}); }, true},
    {"tcp, three paths", [] { return socket_lane({tcp_sockets(), tcp_sockets(), tcp_sockets()}); },
     true},
    {"tcp, two paths, checksums", [] { return socket_lane({tcp_sockets(), tcp_sockets()}, true); },
     true},
    {"queue pair over shared memory", [] { return queue_pair_lane({loopback_underlying_lanes()}); },
     true},
    {"queue pair over tcp", [] { return queue_pair_lane({tcp_underlying_lanes()}); }, true},
    {"three queue pairs",
     [] {
       return queue_pair_lane(
           {loopback_underlying_lanes(), tcp_underlying_lanes(), loopback_underlying_lanes()});
     },
     true},
    {"queue pair, registered memory",
     [] { return queue_pair_lane({loopback_underlying_lanes()}, 1000); }, true, false},
};

inline const Provider rdma_providers[] = {
    {"RDMA device", [] { return rdma_lane(1); }, true},
    {"RDMA device, three queue pairs", [] { return rdma_lane(3); }, true},
    {"RDMA device, registered memory", [] { return rdma_lane(1, 1000); }, true, false},
};

// Where a device is named, that alone.
inline std::span<const Provider> providers() {
  if (rdma_port()) return rdma_providers;
  return software_providers;
}

// Message `number` of `size` bytes: every byte depends on both its place and the number.
inline std::vector<std::byte> payload_of(uint64_t number, size_t size) {
  std::vector<std::byte> bytes(size);
  for (size_t i = 0; i < size; ++i) bytes[i] = static_cast<std::byte>(i * 13 + number * 101 + 7);
  return bytes;
}

inline Header header_of(uint64_t number, size_t size) {
  return {.fingerprint = ~number,
          .id = number,
          .length = static_cast<uint32_t>(size),
          .is_only_moved = number % 2 != 0};
}

// A moment of about so many nanoseconds, in which this thread keeps its core.
inline void pass_time(size_t turns) {
  for (size_t i = 0; i < turns; ++i) asm volatile("" ::: "memory");
}

class Patience {
 public:
  // Fails the test when its time is up.
  void turn() {
    CHECK(std::chrono::steady_clock::now() < until_);
    std::this_thread::yield();
  }

 private:
  std::chrono::steady_clock::time_point until_ =
      std::chrono::steady_clock::now() + std::chrono::seconds(60);
};

enum class How { receive, lend };

// The receiving end of a lane. A message that is half-way keeps its place here.
class Inbox {
 public:
  explicit Inbox(Lane& from) : from_(from) {}

  // Takes the next message if all of it is there; it must be `number`, `size` bytes long. What is
  // longer than a slot is not lent.
  bool take(uint64_t number, size_t size, How how) {
    const Header* header = from_.peek();
    if (header == nullptr) return false;
    CHECK(header->id == number && header->fingerprint == ~number && header->length == size);
    bool is_lent = how == How::lend && size <= slot_bytes;
    const std::byte* got = is_lent ? from_.lend() : receive(size);
    if (got == nullptr) return false;
    CHECK(from_.peek() != nullptr && from_.peek()->id == number);
    std::vector<std::byte> expected = payload_of(number, size);
    CHECK(std::equal(expected.begin(), expected.end(), got));
    from_.release();
    return true;
  }

 private:
  const std::byte* receive(size_t size) {
    constexpr std::byte guard{0x5a};
    if (buffer_.size() < size + 2) buffer_.resize(size + 2);
    buffer_[0] = buffer_[size + 1] = guard;
    if (!from_.receive(buffer_.data() + 1)) return nullptr;
    CHECK(buffer_[0] == guard && buffer_[size + 1] == guard);
    return buffer_.data() + 1;
  }

  Lane& from_;
  std::vector<std::byte> buffer_;
};

// How a test takes message `number`.
inline How how_of(uint64_t number) { return number % 3 ? How::receive : How::lend; }

// One end of a conversation: posts messages of all sizes, frees each payload as soon as the lane
// says so, and checks what comes.
class Talker {
 public:
  // At most `most_lent` payloads are the lane's at a time.
  Talker(Lane& lane, uint64_t num_messages, const std::vector<size_t>& sizes,
         size_t most_lent = ~size_t{0})
      : lane_(lane),
        inbox_(lane),
        num_messages_(num_messages),
        sizes_(sizes),
        most_lent_(most_lent) {}

  void post() {
    for (; posted_ < num_messages_ && borrowed_.size() < most_lent_; ++posted_) {
      borrowed_.push_back(payload_of(posted_, size_of(posted_)));
      Header header = header_of(posted_, size_of(posted_));
      CHECK(lane_.post_send(header, borrowed_.back().data()) == posted_ + 1);
      free_completed();
    }
  }

  // True once everything was sent and received.
  bool turn() {
    post();
    lane_.flush();
    free_completed();
    while (received_ < num_messages_ &&
           inbox_.take(received_, size_of(received_), how_of(received_))) {
      ++received_;
    }
    // Nothing more brings an acknowledgement along.
    if (lane_.flushed() && received_ == num_messages_) lane_.detach();
    return freed_ == num_messages_ && received_ == num_messages_ && lane_.flushed();
  }

 private:
  size_t size_of(uint64_t number) const { return sizes_[number * 7 % sizes_.size()]; }

  // Overwritten first, so that a lane which still reads it sends the wrong bytes.
  void free_completed() {
    for (; freed_ < lane_.completed(); ++freed_) {
      std::fill(borrowed_.front().begin(), borrowed_.front().end(), std::byte{0xee});
      borrowed_.pop_front();
    }
  }

  Lane& lane_;
  Inbox inbox_;
  const uint64_t num_messages_;
  const std::vector<size_t>& sizes_;
  const size_t most_lent_;
  std::deque<std::vector<std::byte>> borrowed_;
  uint64_t posted_ = 0, freed_ = 0, received_ = 0;
};

}  // namespace hccl::test
