#include "verbs/underlying_lane.h"

#include <sys/socket.h>

#include "lanes/shm.h"
#include "lanes/tcp.h"

namespace hccl {

namespace {

constexpr SegmentShape shm_shape{.num_local_ranks = 2, .num_channels = 1, .num_slots = 8,
                                 .slot_bytes = 65536};
constexpr size_t tcp_slot_bytes = 262144;

// What one end of a lane in shared memory is made of.
struct ShmParts {
  std::shared_ptr<Segment> mine;
  std::shared_ptr<Segment> theirs;
  Descriptor my_doorbell;
  Descriptor their_doorbell;
  Descriptor control;
  std::shared_ptr<Arena> arena = nullptr;
  std::shared_ptr<ArenaWindow> peer_arena = nullptr;
};

class ShmUnderlyingLane final : public UnderlyingLane {
 public:
  ShmUnderlyingLane(int rank, ShmParts parts)
      : parts_(std::move(parts)),
        lane_(1 - rank,
              {parts_.mine, parts_.theirs, rank, 1 - rank,
               std::make_shared<Doorbell>(parts_.theirs, std::move(parts_.their_doorbell),
                                          statistics_),
               0},
              std::make_shared<Outbox>(parts_.mine, 0), statistics_) {}

  Lane& lane() override { return lane_; }
  size_t slot_bytes() const override { return shm_shape.slot_bytes; }
  const Arena* arena() const override { return parts_.arena.get(); }
  const ArenaWindow* peer_arena() const override { return parts_.peer_arena.get(); }

  std::vector<int> descriptors() const override {
    if (parts_.control.get() < 0) return {parts_.my_doorbell.get()};
    return {parts_.my_doorbell.get(), parts_.control.get()};
  }

  // An eventfd is always writable.
  void watch(Sleep& sleep) override {
    for (int fd : descriptors()) sleep.watch(fd);
  }

  void raise(Sleeper sleeper) override {
    UnderlyingLane::raise(sleeper);
    parts_.mine->note_starved(!lane_.flushed());
    parts_.mine->raise(sleeper);
  }

  void lower(Sleeper sleeper) override {
    parts_.mine->lower(sleeper);
    clear_event(parts_.my_doorbell);
    // The peer may have rung for another sleeper, which has not been scheduled yet.
    if (parts_.mine->header().sleepers.load(std::memory_order_seq_cst) != 0) {
      signal_event(parts_.my_doorbell);
    }
    UnderlyingLane::lower(sleeper);
  }

  bool peer_has_ended() override {
    char byte;
    int fd = parts_.control.get();
    return fd >= 0 && ::recv(fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT) == 0;
  }

 private:
  Statistics statistics_;
  ShmParts parts_;
  ShmLane lane_;
};

class TcpUnderlyingLane final : public UnderlyingLane {
 public:
  explicit TcpUnderlyingLane(Descriptor socket)
      : lane_(0, {std::make_shared<SocketStream>(std::move(socket))}, options(), statistics_) {}

  Lane& lane() override { return lane_; }
  size_t slot_bytes() const override { return tcp_slot_bytes; }
  std::vector<int> descriptors() const override { return {lane_.fd(0)}; }
  void tend() override { lane_.tend(TcpLane::Clock::now()); }

 private:
  static TcpOptions options() {
    TcpOptions options;
    options.slot_bytes = tcp_slot_bytes;
    return options;
  }

  Statistics statistics_;
  TcpLane lane_;
};

}  // namespace

void UnderlyingLane::watch(Sleep& sleep) {
  short events = lane().flushed() ? POLLIN : POLLIN | POLLOUT;
  for (int fd : descriptors()) sleep.watch(fd, events);
}

void UnderlyingLane::raise(Sleeper sleeper) {
  if (sleeper == Sleeper::caller) num_callers_.fetch_add(1, std::memory_order_relaxed);
}

void UnderlyingLane::lower(Sleeper sleeper) {
  if (sleeper == Sleeper::caller) num_callers_.fetch_sub(1, std::memory_order_relaxed);
}

ShmEndpoint::ShmEndpoint(std::shared_ptr<Arena> arena)
    : arena_(std::move(arena)), segment_(Segment::create(shm_shape)), doorbell_(new_event()) {}

std::shared_ptr<UnderlyingLane> ShmEndpoint::connect(int rank, Theirs theirs, Descriptor control) {
  ShmParts parts{segment_, Segment::open(std::move(theirs.segment), shm_shape),
                 duplicate(doorbell_.get()), std::move(theirs.doorbell), std::move(control)};
  if (theirs.arena.get() >= 0) {
    parts.arena = arena_->window() ? arena_ : nullptr;
    parts.peer_arena = arena_->open_peer(std::move(theirs.arena));
  }
  return std::make_shared<ShmUnderlyingLane>(rank, std::move(parts));
}

std::shared_ptr<UnderlyingLane> tcp_underlying_lane(Descriptor socket) {
  return std::make_shared<TcpUnderlyingLane>(std::move(socket));
}

std::array<std::shared_ptr<UnderlyingLane>, 2> loopback_underlying_lanes() {
  ShmEndpoint left(nullptr), right(nullptr);
  auto theirs = [](const ShmEndpoint& peer) {
    return ShmEndpoint::Theirs{duplicate(peer.segment_fd()), duplicate(peer.doorbell_fd()),
                               Descriptor(-1)};
  };
  return {left.connect(0, theirs(right), Descriptor(-1)),
          right.connect(1, theirs(left), Descriptor(-1))};
}

}  // namespace hccl
