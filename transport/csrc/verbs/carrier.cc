#include "verbs/carrier.h"

#include <fcntl.h>
#include <sys/eventfd.h>
#include <sys/socket.h>

#include <cerrno>
#include <system_error>

#include "lanes/tcp.h"

namespace hccl {

namespace {

constexpr SegmentShape shm_shape{.num_local_ranks = 2, .num_channels = 1, .num_slots = 8,
                                 .slot_bytes = 65536};
constexpr size_t tcp_slot_bytes = 262144;

Descriptor new_event() {
  int fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (fd < 0) throw std::system_error(errno, std::generic_category(), "eventfd");
  return Descriptor(fd);
}

Descriptor duplicate(int fd) {
  int copy = fcntl(fd, F_DUPFD_CLOEXEC, 0);
  if (copy < 0) throw std::system_error(errno, std::generic_category(), "dup");
  return Descriptor(copy);
}

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

  void watch(std::vector<pollfd>& descriptors) override {
    starved_.store(!lane_->flushed(), std::memory_order_relaxed);
    descriptors.push_back({my_doorbell_.get(), POLLIN, 0});
    if (control_.get() >= 0) descriptors.push_back({control_.get(), POLLIN, 0});
  }

  void begin_nap() override { mine_->begin_nap(starved_.load(std::memory_order_relaxed)); }

  void end_nap() override {
    mine_->end_nap();
    uint64_t count;
    [[maybe_unused]] ssize_t got = ::read(my_doorbell_.get(), &count, sizeof count);
    // The ring may have been for another sleeper of ours, which it wakes only while it stands.
    if (mine_->header().sleepers.load(std::memory_order_seq_cst) == 0) return;
    uint64_t one = 1;
    [[maybe_unused]] ssize_t written = ::write(my_doorbell_.get(), &one, sizeof one);
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
  std::atomic<bool> starved_{false};  // a hint from watch() to the begin_nap() that follows
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
  void watch(std::vector<pollfd>& descriptors) override {
    short events = POLLIN;
    if (!lane_.flushed()) events |= POLLOUT;
    descriptors.push_back({lane_.fd(0), events, 0});
  }
  void tend() override { lane_.tend(TcpLane::Clock::now()); }

 private:
  Statistics statistics_;
  TcpLane lane_;
};

}  // namespace

LaneCarrier::LaneCarrier(std::shared_ptr<Lane> lane, size_t slot_bytes,
                         std::vector<int> descriptors)
    : lane_(std::move(lane)), slot_bytes_(slot_bytes), descriptors_(std::move(descriptors)) {}

void LaneCarrier::watch(std::vector<pollfd>& descriptors) {
  short events = POLLIN;
  if (!lane_->flushed()) events |= POLLOUT;
  for (int fd : descriptors_) descriptors.push_back({fd, events, 0});
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
