#include "verbs/carrier.h"

#include <sys/socket.h>

#include "lanes/tcp.h"

namespace hccl {

namespace {

constexpr SegmentShape shm_shape{.num_local_ranks = 2, .num_channels = 1, .num_slots = 8,
                                 .slot_bytes = 65536};
constexpr size_t tcp_slot_bytes = 262144;

class ShmCarrier final : public Carrier {
 public:
  ShmCarrier(std::shared_ptr<Segment> mine, Descriptor my_doorbell, Descriptor control)
      : mine_(std::move(mine)),
        my_doorbell_(std::move(my_doorbell)),
        control_(std::move(control)) {}

  void connect(int rank, std::shared_ptr<Segment> theirs, Descriptor their_doorbell) {
    auto bell = std::make_shared<Doorbell>(theirs, std::move(their_doorbell), statistics_);
    ShmLane::Ends ends{mine_, std::move(theirs), rank, 1 - rank, bell, 0};
    lane_ = std::make_unique<ShmLane>(1 - rank, ends, std::make_shared<Outbox>(mine_, 0),
                                      statistics_);
  }
  void lend(std::shared_ptr<Arena> arena, std::shared_ptr<ArenaWindow> theirs) {
    arena_ = std::move(arena);
    peer_arena_ = std::move(theirs);
  }

  const Arena* arena() const override { return arena_.get(); }
  const ArenaWindow* peer_arena() const override { return peer_arena_.get(); }

  Lane& lane() override { return *lane_; }
  size_t slot_bytes() const override { return shm_shape.slot_bytes; }

  std::vector<int> descriptors() const override {
    if (control_.get() < 0) return {my_doorbell_.get()};
    return {my_doorbell_.get(), control_.get()};
  }

  void watch(Sleep& sleep) override {
    for (int fd : descriptors()) sleep.watch(fd);
  }

  void raise(Sleeper sleeper) override {
    Carrier::raise(sleeper);
    mine_->note_starved(!lane_->flushed());
    mine_->raise(sleeper);
  }

  void lower(Sleeper sleeper) override {
    mine_->lower(sleeper);
    clear_event(my_doorbell_);
    // It may have rung for another sleeper of ours, which it wakes only while it is readable.
    if (mine_->header().sleepers.load(std::memory_order_seq_cst) != 0) signal_event(my_doorbell_);
    Carrier::lower(sleeper);
  }

  bool peer_is_gone() override {
    char byte;
    return control_.get() >= 0 &&
           ::recv(control_.get(), &byte, 1, MSG_PEEK | MSG_DONTWAIT) == 0;
  }

 private:
  Statistics statistics_;
  const std::shared_ptr<Segment> mine_;
  const Descriptor my_doorbell_;
  const Descriptor control_;
  std::unique_ptr<ShmLane> lane_;
  std::shared_ptr<Arena> arena_;
  std::shared_ptr<ArenaWindow> peer_arena_;
};

TcpOptions tcp_options() {
  TcpOptions options;
  options.slot_bytes = tcp_slot_bytes;
  return options;
}

class TcpCarrier final : public Carrier {
 public:
  explicit TcpCarrier(Descriptor socket)
      : lane_(0, {std::make_shared<SocketStream>(std::move(socket))},
              tcp_options(), statistics_) {}

  Lane& lane() override { return lane_; }
  size_t slot_bytes() const override { return tcp_slot_bytes; }
  std::vector<int> descriptors() const override { return {lane_.fd(0)}; }
  void tend() override { lane_.tend(TcpLane::Clock::now()); }

 private:
  Statistics statistics_;
  TcpLane lane_;
};

}  // namespace

LaneCarrier::LaneCarrier(std::shared_ptr<Lane> lane, size_t slot_bytes,
                         std::vector<int> descriptors)
    : lane_(std::move(lane)), slot_bytes_(slot_bytes), descriptors_(std::move(descriptors)) {}

void Carrier::watch(Sleep& sleep) {
  short events = lane().flushed() ? POLLIN : POLLIN | POLLOUT;
  for (int fd : descriptors()) sleep.watch(fd, events);
}

void Carrier::raise(Sleeper sleeper) {
  if (sleeper == Sleeper::caller) num_callers_.fetch_add(1, std::memory_order_relaxed);
}

void Carrier::lower(Sleeper sleeper) {
  if (sleeper == Sleeper::caller) num_callers_.fetch_sub(1, std::memory_order_relaxed);
}

ShmEndpoint::ShmEndpoint(std::shared_ptr<Arena> arena)
    : arena_(std::move(arena)), segment_(Segment::create(shm_shape)), doorbell_(new_event()) {}

std::shared_ptr<Carrier> ShmEndpoint::connect(int rank, Theirs theirs, Descriptor control) {
  auto carrier =
      std::make_shared<ShmCarrier>(segment_, duplicate(doorbell_.get()), std::move(control));
  carrier->connect(rank, Segment::open(std::move(theirs.segment), shm_shape),
                   std::move(theirs.doorbell));
  if (theirs.arena.get() >= 0) {
    carrier->lend(arena_->window() ? arena_ : nullptr,
                  arena_->open_peer(std::move(theirs.arena)));
  }
  return carrier;
}

std::shared_ptr<Carrier> tcp_carrier(Descriptor socket) {
  return std::make_shared<TcpCarrier>(std::move(socket));
}

std::array<std::shared_ptr<Carrier>, 2> loopback_carriers() {
  ShmEndpoint left(nullptr), right(nullptr);
  auto theirs = [](const ShmEndpoint& peer) {
    return ShmEndpoint::Theirs{duplicate(peer.segment_fd()), duplicate(peer.doorbell_fd()),
                               Descriptor(-1)};
  };
  return {left.connect(0, theirs(right), Descriptor(-1)),
          right.connect(1, theirs(left), Descriptor(-1))};
}

}  // namespace hccl
