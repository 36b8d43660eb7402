#include "verbs/software/underlying_lane.h"

#include <sys/socket.h>

#include "lanes/shared_memory/shm.h"

namespace hccl {

namespace {

constexpr SegmentShape shm_shape{
    .num_local_ranks = 2, .num_channels = 1, .num_slots = 8, .slot_bytes = 65536};
// A sender of requests has other requests to post meanwhile.
constexpr size_t min_announced_bytes = 4096;
constexpr size_t tcp_slot_bytes = 262144;

class ShmUnderlyingLane final : public UnderlyingLane {
 public:
  ShmUnderlyingLane(const MakeLane& make, std::shared_ptr<Segment> mine, Descriptor doorbell,
                    Descriptor control)
      : UnderlyingLane(shm_shape.slot_bytes, make),
        mine_(std::move(mine)),
        doorbell_(std::move(doorbell)),
        control_(std::move(control)) {}

  std::vector<int> descriptors() const override {
    if (control_.get() < 0) return {doorbell_.get()};
    return {doorbell_.get(), control_.get()};
  }

  // An eventfd is always writable.
  void watch(Sleep& sleep) override {
    for (int fd : descriptors()) sleep.watch(fd);
  }

  void raise(Sleeper sleeper) override {
    mine_->note_starved(!lane().flushed());
    mine_->raise(sleeper);
  }

  void lower(Sleeper sleeper) override {
    mine_->lower(sleeper);
    clear_event(doorbell_);
    // The peer's wake-up may have been for another sleeper, which was not scheduled yet.
    if (mine_->header().sleepers.load(std::memory_order_seq_cst) != 0) signal_event(doorbell_);
  }

  bool peer_has_ended() override {
    char byte;
    int fd = control_.get();
    return fd >= 0 && ::recv(fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT) == 0;
  }

 private:
  const std::shared_ptr<Segment> mine_;
  const Descriptor doorbell_;
  const Descriptor control_;
};

class TcpUnderlyingLane final : public UnderlyingLane {
 public:
  explicit TcpUnderlyingLane(const MakeLane& make) : UnderlyingLane(tcp_slot_bytes, make) {}

  std::vector<int> descriptors() const override { return {tcp().fd(0)}; }
  void tend() override { tcp().tend(TcpLane::Clock::now()); }

 private:
  TcpLane& tcp() const { return static_cast<TcpLane&>(lane()); }
};

}  // namespace

void UnderlyingLane::watch(Sleep& sleep) {
  short events = lane().flushed() ? POLLIN : POLLIN | POLLOUT;
  for (int fd : descriptors()) sleep.watch(fd, events);
}

ShmEndpoint::ShmEndpoint(std::shared_ptr<Arena> arena)
    : arena_(std::move(arena)), segment_(Segment::create(shm_shape)), doorbell_(new_event()) {}

std::shared_ptr<UnderlyingLane> ShmEndpoint::connect(int rank, Theirs theirs) {
  auto make = [&](Statistics& statistics) {
    auto segment = Segment::open(std::move(theirs.segment), shm_shape);
    auto bell = std::make_shared<Doorbell>(segment, std::move(theirs.doorbell), statistics);
    ShmLane::Ends ends{segment_, std::move(segment), rank, 1 - rank, std::move(bell), 0};
    auto outbox = std::make_shared<Outbox>(segment_, 0, std::make_shared<Distance>());
    auto lane = std::make_shared<ShmLane>(1 - rank, ends, std::move(outbox), statistics);
    std::shared_ptr<ArenaWindow> their_arena;
    if (theirs.arena.get() >= 0) their_arena = arena_->open_peer(std::move(theirs.arena));
    lane->set_arenas(arena_, std::move(their_arena), min_announced_bytes);
    return lane;
  };
  return std::make_shared<ShmUnderlyingLane>(make, segment_, duplicate(doorbell_.get()),
                                             std::move(theirs.control));
}

std::shared_ptr<UnderlyingLane> tcp_underlying_lane(Descriptor socket, int peer,
                                                    TcpOptions options) {
  auto stream = std::make_shared<SocketStream>(std::move(socket));
  return std::make_shared<TcpUnderlyingLane>([&](Statistics& statistics) {
    options.slot_bytes = tcp_slot_bytes;
    return std::make_shared<TcpLane>(peer, std::vector<std::shared_ptr<Stream>>{std::move(stream)},
                                     options, statistics);
  });
}

std::array<std::shared_ptr<UnderlyingLane>, 2> loopback_underlying_lanes() {
  ShmEndpoint left(nullptr), right(nullptr);
  auto theirs = [](const ShmEndpoint& peer) {
    return ShmEndpoint::Theirs{duplicate(peer.segment_fd()), duplicate(peer.doorbell_fd())};
  };
  return {left.connect(0, theirs(right)), right.connect(1, theirs(left))};
}

}  // namespace hccl
