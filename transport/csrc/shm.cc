#include "shm.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <stdexcept>
#include <system_error>

namespace hccl {

namespace {

constexpr size_t page = 4096;

constexpr size_t round_up(size_t size, size_t unit) { return (size + unit - 1) / unit * unit; }

size_t counters_at() { return round_up(sizeof(SegmentHeader), page); }

size_t rings_at(const SegmentShape& s) {
  return counters_at() +
         round_up(sizeof(ConsumedCounter) * s.num_local_ranks * s.num_channels, page);
}

size_t slots_at(const SegmentShape& s) {
  return rings_at(s) +
         round_up(sizeof(Cell) * ring_cells * s.num_local_ranks * s.num_channels, page);
}

[[noreturn]] void throw_errno(const char* what) {
  throw std::system_error(errno, std::generic_category(), what);
}

}  // namespace

size_t Segment::size_of(const SegmentShape& s) {
  return slots_at(s) + s.slot_bytes * s.num_slots * s.num_channels;
}

std::shared_ptr<Segment> Segment::create(const SegmentShape& shape) {
  int fd = memfd_create("hccl", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (fd < 0) throw_errno("memfd_create");
  if (ftruncate(fd, static_cast<off_t>(size_of(shape))) != 0 ||
      fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
    int error = errno;
    ::close(fd);
    throw std::system_error(error, std::generic_category(), "shared memory segment");
  }
  return std::shared_ptr<Segment>(new Segment(fd, shape, true));
}

std::shared_ptr<Segment> Segment::open(int fd, const SegmentShape& shape) {
  struct stat status;
  int seals = fcntl(fd, F_GET_SEALS);
  // A peer that could shrink its segment later could kill us with SIGBUS.
  if (fstat(fd, &status) != 0 || static_cast<size_t>(status.st_size) < size_of(shape) ||
      seals < 0 || !(seals & F_SEAL_SHRINK)) {
    ::close(fd);
    throw std::invalid_argument("a peer's shared memory segment is too small or not sealed");
  }
  return std::shared_ptr<Segment>(new Segment(fd, shape, false));
}

Segment::Segment(int fd, const SegmentShape& shape, bool writable) : fd_(fd), shape_(shape) {
  int protection = writable ? PROT_READ | PROT_WRITE : PROT_READ;
  void* address = mmap(nullptr, size_of(shape), protection, MAP_SHARED, fd, 0);
  if (address == MAP_FAILED) {
    int error = errno;
    ::close(fd);
    throw std::system_error(error, std::generic_category(), "mmap of a segment");
  }
  base_ = static_cast<std::byte*>(address);
}

Segment::~Segment() {
  munmap(base_, size_of(shape_));
  ::close(fd_);
}

SegmentHeader& Segment::header() const { return *reinterpret_cast<SegmentHeader*>(base_); }

ConsumedCounter& Segment::consumed(int local_rank, int channel) const {
  auto* counters = reinterpret_cast<ConsumedCounter*>(base_ + counters_at());
  return counters[local_rank * shape_.num_channels + channel];
}

Cell* Segment::ring(int local_rank, int channel) const {
  auto* cells = reinterpret_cast<Cell*>(base_ + rings_at(shape_));
  return cells + (local_rank * shape_.num_channels + channel) * ring_cells;
}

std::byte* Segment::slot(int channel, int index) const {
  return base_ + slots_at(shape_) +
         (static_cast<size_t>(channel) * shape_.num_slots + index) * shape_.slot_bytes;
}

Outbox::Outbox(std::shared_ptr<Segment> segment, int channel)
    : segment_(std::move(segment)), channel_(channel) {
  int num_slots = segment_->shape().num_slots;
  readers_.resize(num_slots);
  for (int i = num_slots; i-- > 0;) free_.push_back(i);
}

void Outbox::add_lane(ShmQueuePair* lane) {
  lanes_.push_back(lane);
  ++empty_lanes_;
}

int Outbox::take(bool lane_holds_none) {
  // The slot reserved for this very lane counts for it.
  size_t reserved = static_cast<size_t>(empty_lanes_) - (lane_holds_none ? 1 : 0);
  if (free_.size() <= reserved) return -1;
  int slot = free_.back();
  free_.pop_back();
  return slot;
}

int Outbox::take_for_many() {
  if (free_.size() <= static_cast<size_t>(empty_lanes_)) return -1;
  int slot = free_.back();
  free_.pop_back();
  return slot;
}

void Outbox::done_reading(int slot) {
  if (--readers_[slot] == 0) free_.push_back(slot);
}

void Outbox::reclaim() {
  for (ShmQueuePair* lane : lanes_) lane->reclaim();
}

ShmQueuePair::ShmQueuePair(int peer, const Ends& ends, std::shared_ptr<Outbox> outbox,
                           Statistics& statistics)
    : QueuePair(peer, ends.mine->shape().slot_bytes, statistics),
      ends_(ends),
      outbox_(std::move(outbox)),
      out_(ends.mine->ring(ends.their_local_rank, ends.channel)),
      in_(ends.theirs->ring(ends.my_local_rank, ends.channel)),
      my_consumed_(ends.mine->consumed(ends.their_local_rank, ends.channel)),
      their_consumed_(ends.theirs->consumed(ends.my_local_rank, ends.channel)),
      their_header_(ends.theirs->header()) {
  outbox_->add_lane(this);
}

void ShmQueuePair::reclaim() {
  uint64_t consumed = their_consumed_.count.load(std::memory_order_seq_cst);
  if (consumed > sent_) throw LaneError(peer(), "a malformed counter in shared memory");
  for (; reclaimed_ < consumed; ++reclaimed_) {
    Sent sent = sent_slots_[reclaimed_ % ring_cells];
    if (sent.slot < 0) continue;
    outbox_->done_reading(sent.slot);
    if (!sent.shared && --own_slots_ == 0) outbox_->lane_became_empty();
  }
}

bool ShmQueuePair::ring_is_full() {
  if (sent_ - reclaimed_ < ring_cells) return false;
  reclaim();
  return sent_ - reclaimed_ >= ring_cells;
}

void ShmQueuePair::wake_peer() {
  if (their_header_.sleepers.load(std::memory_order_seq_cst) == 0) return;
  statistics_.doorbells.add(1);
  uint64_t one = 1;
  // Fails only when the counter is full, and then the bell is ringing anyway.
  [[maybe_unused]] ssize_t written = ::write(ends_.their_doorbell, &one, sizeof one);
}

void ShmQueuePair::publish(const Header& header, const std::byte* payload, int slot, bool shared) {
  Cell& cell = out_[sent_ % ring_cells];
  cell.slot = slot;
  cell.header = header;
  if (slot < 0 && header.length) std::memcpy(cell.payload, payload, header.length);
  sent_slots_[sent_ % ring_cells] = {slot, shared};
  ++sent_;
  cell.sequence.store(static_cast<uint32_t>(sent_), std::memory_order_seq_cst);
  statistics_.shm_messages.add(1);
  statistics_.shm_bytes.add(header.length);
  wake_peer();
}

bool ShmQueuePair::push(const Header& header, const std::byte* payload, size_t&) {
  if (ring_is_full()) return false;
  int slot = -1;
  if (header.length > inline_bytes) {
    outbox_->reclaim();  // may find that this lane holds none
    slot = outbox_->take(own_slots_ == 0);
    if (slot < 0) return false;
    outbox_->share(slot, 1);
    if (own_slots_++ == 0) outbox_->lane_was_filled();
    std::memcpy(outbox_->slot(slot), payload, header.length);
  }
  publish(header, payload, slot, false);
  return true;
}

bool ShmQueuePair::post_send_to_all(std::span<QueuePair* const> lanes, const Header& header,
                                    const std::byte* payload) {
  if (header.length <= inline_bytes) return false;
  for (QueuePair* lane : lanes) {
    if (!lane->flushed() || static_cast<ShmQueuePair*>(lane)->ring_is_full()) return false;
  }
  outbox_->reclaim();
  int slot = outbox_->take_for_many();
  if (slot < 0) return false;
  outbox_->share(slot, static_cast<int>(lanes.size()));
  std::memcpy(outbox_->slot(slot), payload, header.length);
  for (QueuePair* lane : lanes) {
    static_cast<ShmQueuePair*>(lane)->publish(header, payload, slot, true);
  }
  return true;
}

const Header* ShmQueuePair::peek() {
  const Cell& cell = in_[received_ % ring_cells];
  uint32_t expected = static_cast<uint32_t>(received_ + 1);
  if (cell.sequence.load(std::memory_order_seq_cst) != expected) return nullptr;
  size_t limit = cell.slot < 0 ? inline_bytes : slot_bytes_;
  if (cell.header.length > limit || cell.slot >= ends_.theirs->shape().num_slots) {
    throw LaneError(peer(), "a malformed message in shared memory");
  }
  return &cell.header;
}

const std::byte* ShmQueuePair::lend() {
  const Cell& cell = in_[received_ % ring_cells];
  return cell.slot < 0 ? cell.payload : ends_.theirs->slot(ends_.channel, cell.slot);
}

bool ShmQueuePair::receive(std::byte* destination) {
  size_t length = in_[received_ % ring_cells].header.length;
  if (length) std::memcpy(destination, lend(), length);
  return true;
}

void ShmQueuePair::release() {
  my_consumed_.count.store(++received_, std::memory_order_seq_cst);
  wake_peer();
}

}  // namespace hccl
