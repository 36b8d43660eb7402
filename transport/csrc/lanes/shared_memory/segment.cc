#include "lanes/shared_memory/segment.h"

#include <sched.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <map>
#include <mutex>
#include <stdexcept>

#include "base/memory/memory_file.h"

namespace hccl {

namespace {

constexpr size_t page = 4096;

// MADV_POPULATE_READ and _WRITE: C libraries before glibc 2.35 lack them, and Linux before 5.14.
constexpr int populate_read = 22, populate_write = 23;

constexpr size_t step_counter_at = sizeof(SegmentHeader);
constexpr size_t posts_at = round_up(step_counter_at + sizeof(StepCounter), page);
constexpr size_t buffers_at = posts_at + round_up(sizeof(RingEntry) * post_entries, page);

size_t counters_at(const SegmentShape& s) {
  return buffers_at + s.num_post_buffers() * post_buffer_bytes;
}

size_t joint_entries_at(const SegmentShape& s) {
  return counters_at(s) + sizeof(ConsumedCounter) * s.num_local_ranks * s.num_channels;
}

size_t rings_at(const SegmentShape& s) {
  size_t joint_bytes = sizeof(JointEntry) * s.num_local_ranks * s.num_channels;
  return round_up(joint_entries_at(s) + joint_bytes, page);
}

size_t slots_at(const SegmentShape& s) {
  return rings_at(s) +
         round_up(sizeof(RingEntry) * ring_entries * s.num_local_ranks * s.num_channels, page);
}

size_t size_of(const SegmentShape& s) {
  return slots_at(s) + s.slot_bytes * s.num_slots * s.num_channels;
}

#ifdef __SANITIZE_THREAD__

// ThreadSanitizer identifies memory by address, so it does not recognise two mappings of the same
// memory, and reports false races. In its tests both ends of a process share one mapping, which is
// not read-only.
class Mappings {
 public:
  void add(const std::shared_ptr<Segment>& segment) {
    std::lock_guard lock(mutex_);
    segments_[inode_of(segment->fd())] = segment;
  }
  std::shared_ptr<Segment> find(int memory) {
    std::lock_guard lock(mutex_);
    return segments_[inode_of(memory)].lock();
  }

 private:
  static ino_t inode_of(int memory) {
    struct stat status{};
    fstat(memory, &status);
    return status.st_ino;
  }
  std::mutex mutex_;
  std::map<ino_t, std::weak_ptr<Segment>> segments_;
};

Mappings& mappings() {
  static Mappings of_process;
  return of_process;
}

#endif

}  // namespace

std::shared_ptr<Segment> Segment::create(const SegmentShape& shape) {
  Descriptor memory = memory_file(size_of(shape), "hccl");
  int fd = memory.get();
  std::shared_ptr<Segment> segment(
      new Segment(fd, shape, PROT_READ | PROT_WRITE, std::move(memory)));
  auto& address = segment->header().owner_address;
  address.store(reinterpret_cast<uint64_t>(&address), std::memory_order_relaxed);
#ifdef __SANITIZE_THREAD__
  mappings().add(segment);
#endif
  return segment;
}

std::shared_ptr<Segment> Segment::open(Descriptor memory, const SegmentShape& shape) {
  struct stat status;
  if (fstat(memory.get(), &status) != 0 || !is_sealed(memory) ||
      static_cast<size_t>(status.st_size) < size_of(shape)) {
    throw std::invalid_argument("a peer's shared memory segment is too small or not sealed");
  }
#ifdef __SANITIZE_THREAD__
  if (auto mine = mappings().find(memory.get())) return mine;
#endif
  return std::shared_ptr<Segment>(new Segment(memory.get(), shape, PROT_READ, Descriptor(-1)));
}

Segment::Segment(int memory, const SegmentShape& shape, int protection, Descriptor kept)
    : memory_(std::move(kept)), shape_(shape) {
  void* address = mmap(nullptr, size_of(shape), protection, MAP_SHARED, memory, 0);
  if (address == MAP_FAILED) throw_errno("mmap of a segment");
  base_ = static_cast<std::byte*>(address);
  // Otherwise each of the first small calls takes a page fault or more, and 10 us instead of 2. Of
  // the outboxes, only what the owner uses first: a page that is written for the first time takes
  // 3 us, one that a peer wrote 0.2 to read. Without the pages calls work too.
  bool is_mine = (protection & PROT_WRITE) != 0;
  madvise(base_, slots_at(shape), is_mine ? populate_write : populate_read);
  size_t bytes_in_turn = shape.slot_bytes * std::min(shape.num_slots, SegmentShape::slots_in_turn);
  bool has_readers = is_mine && shape.num_local_ranks > 1;
  for (int channel = 0; has_readers && channel < shape.num_channels; ++channel) {
    madvise(part(channel, 0, 0), bytes_in_turn, populate_write);
  }
}

Segment::~Segment() { munmap(base_, size_of(shape_)); }

ConsumedCounter& Segment::consumed(int local_rank, int channel) const {
  auto* counters = reinterpret_cast<ConsumedCounter*>(base_ + counters_at(shape_));
  return counters[local_rank * shape_.num_channels + channel];
}

JointEntry& Segment::joint_entry(int local_rank, int channel) const {
  auto* entries = reinterpret_cast<JointEntry*>(base_ + joint_entries_at(shape_));
  return entries[local_rank * shape_.num_channels + channel];
}

RingEntry* Segment::ring(int local_rank, int channel) const {
  auto* entries = reinterpret_cast<RingEntry*>(base_ + rings_at(shape_));
  return entries + (local_rank * shape_.num_channels + channel) * ring_entries;
}

std::byte* Segment::part(int channel, int index, size_t num_bytes) const {
  int num_parts = shape_.num_slots * SegmentShape::parts_of_slot;
  size_t offset = index % SegmentShape::parts_of_slot * shape_.part_bytes();
  if (index < 0 || index >= num_parts || num_bytes > shape_.slot_bytes - offset) return nullptr;
  return base_ + slots_at(shape_) +
         (static_cast<size_t>(channel) * num_parts + index) * shape_.part_bytes();
}

std::atomic<uint64_t>& Segment::steps_ended() const {
  return reinterpret_cast<StepCounter*>(base_ + step_counter_at)->ended;
}

RingEntry* Segment::posts() const { return reinterpret_cast<RingEntry*>(base_ + posts_at); }

std::byte* Segment::post_buffer(size_t i) const {
  return base_ + buffers_at + i * post_buffer_bytes;
}

uint32_t Segment::note_core() {
  uint32_t core = static_cast<uint32_t>(sched_getcpu() + 1);
  if (header().core.load(std::memory_order_relaxed) != core) {
    header().core.store(core, std::memory_order_relaxed);
  }
  return core;
}

void Doorbell::ring() {
  uint32_t sleep = theirs_->header().sleeps.load(std::memory_order_relaxed);
  if (rung_.exchange(sleep, std::memory_order_relaxed) == sleep) return;
  statistics_.doorbells.add(1);
  signal_event(event_);
}

}  // namespace hccl
