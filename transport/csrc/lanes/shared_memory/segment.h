// Memory that the ranks of a node share, and the eventfd that wakes its owner.
//
// Every rank owns one segment and is the only one that writes to it; its peers map it read-only.
// A segment holds the rank's messages to others:
//   - per (peer, channel) a ring of entries: one message each, a tiny payload right in the entry;
//   - per channel an outbox of slots: a larger payload is written once and read in place by every
//     rank it is meant for;
//   - per (peer, channel) a counter of the peer's messages that this rank has consumed;
//   - per (peer, channel) the pieces that this rank has taken of a message that both ends copy
//   (joint_copy.h);
//   - a ring of posts and buffers for their payloads, and how many steps it has ended (board.h);
//   - a count of its sleeping threads, so that peers know when to ring its doorbell.
#pragma once

#include <algorithm>
#include <atomic>
#include <memory>

#include "base/descriptor.h"
#include "base/statistics.h"
#include "lanes/lane.h"
#include "progress/sleep.h"

namespace hccl {

// Payloads take turns through more memory than a core's second cache holds. A line that a reader
// still has in its cache costs the next writer 10 ns, one that has left it 2: between two cores of
// an EPYC, 128 KiB were written in 19 us into one slot again and again, and in 4 us into 16 in
// turn.
struct SegmentShape {
  int num_local_ranks = 1;
  int num_channels = 1;
  int num_slots = 8;           // per channel
  size_t slot_bytes = 131072;  // a multiple of 4096 and of `parts_of_slot`

  // Every rank maps and touches all of them, 4 MiB together on most nodes.
  size_t num_post_buffers() const {
    return num_local_ranks == 1 ? 8 : static_cast<size_t>(std::max(256 / num_local_ranks, 8));
  }
  // Of a channel. Others are used while these wait for their readers: through 32 in turn, an
  // all_reduce of 4 MiB of two ranks took 670 us instead of 330.
  static constexpr int slots_in_turn = 8;
  // A short payload lies in a part of a slot.
  static constexpr int parts_of_slot = 8;
  size_t part_bytes() const { return slot_bytes / parts_of_slot; }
};

inline constexpr int ring_entries = 64;
inline constexpr size_t inline_bytes = 88;

inline constexpr size_t post_entries = 256;
inline constexpr size_t post_buffer_bytes = 16384;

// The place of a payload without a slot: in the entry, in the sender's arena, already at its
// destination, in a post by lane, or elsewhere in the sender's memory.
enum Place : int32_t { in_entry = -1, announced = -2, written = -3, by_lane = -4, remote = -5 };

// The payload of an announced or remote entry.
struct Announcement {
  uint64_t offset;  // in the sender's arena; of a remote payload, its address in that process
  uint64_t reply;   // number of the receiver's message that may be written there; 0: none
};

struct alignas(128) RingEntry {
  // Stored last by the sender, seq_cst; pairs with the receiver's load in ShmLane::peek, and
  // with SegmentHeader::sleepers: either the sleeper sees the message or the sender sees the
  // sleeper.
  std::atomic<uint32_t> sequence;
  int32_t slot;  // the first part of one in the outbox, or a Place
  Header header;
  std::byte payload[inline_bytes];
};
static_assert(sizeof(RingEntry) == 128);

struct alignas(64) ConsumedCounter {
  // Stored by the receiver after it is done with a payload; pairs with the load in reclaim().
  std::atomic<uint64_t> count;
  // Whether the receiver maps the sender's arena, so that payloads there need no copy. Stored once,
  // as the next one; relaxed: only the receiver uses what it mapped.
  std::atomic<uint32_t> maps_arena;
  // Whether the receiver can read the sender's whole memory.
  std::atomic<uint32_t> reads_process;
};

// A message that both ends copy (joint_copy.h). The receiver writes the first cache line, the
// sender the second. All seq_cst, but `destination`: it is relaxed, ordered by the store of `reads`
// after it.
struct alignas(64) JointEntry {
  std::atomic<uint64_t> reads;
  std::atomic<uint64_t> destination;  // in the receiver's process
  alignas(64) std::atomic<uint64_t> takes;
  std::atomic<uint64_t> wrote;
};

// How many steps the owner has ended. Stored seq_cst by Board::end_step; pairs with the load before
// a post is overwritten, and with `starved` like ConsumedCounter::count.
struct alignas(64) StepCounter {
  std::atomic<uint64_t> ended;
};

struct alignas(64) SegmentHeader {
  // Number of threads of the owner that sleep or are about to: raised before their last check of
  // the lanes. Pairs with RingEntry::sequence, and where `starved` says so with
  // ConsumedCounter::count.
  std::atomic<uint32_t> sleepers;
  // Counts sleeps: one wake-up per sleep is enough. This and `starved` are stored before `sleepers`
  // is raised and loaded after it, which orders them: relaxed.
  std::atomic<uint32_t> sleeps;
  // Whether a sleeper also waits for its readers to free slots.
  std::atomic<uint32_t> starved;
  // The core on which the owner drove last, plus one. A hint, ordered with nothing.
  std::atomic<uint32_t> core;
  // Whether a call of the owner failed, so that its announced memory may have other contents.
  // Relaxed: the fences of withdraw() and of ShmLane::check_valid() order it before the changes and
  // after the reads.
  std::atomic<uint32_t> withdrawn;
  // Address of this word in the owner, for peers that can read its memory. Stored before a peer
  // maps it.
  std::atomic<uint64_t> owner_address;
};

class Segment final : public SleepFlag {
 public:
  static std::shared_ptr<Segment> create(const SegmentShape& shape);
  // A peer's. Throws std::invalid_argument if it is smaller than the shape says, or not sealed.
  static std::shared_ptr<Segment> open(Descriptor memory, const SegmentShape& shape);
  ~Segment() override;

  int fd() const { return memory_.get(); }  // of its owner; others only map it
  const SegmentShape& shape() const { return shape_; }
  SegmentHeader& header() const { return *reinterpret_cast<SegmentHeader*>(base_); }
  // Before a sleep of the owner; `starved`: a message of the owner waits for space.
  void note_starved(bool starved) { header().starved.store(starved, std::memory_order_relaxed); }
  void raise(Sleeper) override {
    header().sleeps.fetch_add(1, std::memory_order_relaxed);
    header().sleepers.fetch_add(1, std::memory_order_seq_cst);
  }
  // Seen late, it costs a wake-up too many.
  void lower(Sleeper) override { header().sleepers.fetch_sub(1, std::memory_order_relaxed); }
  // Publishes the core this thread runs on, and returns it in the form of SegmentHeader::core.
  uint32_t note_core();
  // The fence keeps later changes of announced memory after the store.
  void withdraw() {
    header().withdrawn.store(1, std::memory_order_relaxed);
    std::atomic_thread_fence(std::memory_order_release);
  }
  bool is_withdrawn() const { return header().withdrawn.load(std::memory_order_relaxed) != 0; }
  ConsumedCounter& consumed(int local_rank, int channel) const;
  JointEntry& joint_entry(int local_rank, int channel) const;
  RingEntry* ring(int local_rank, int channel) const;
  // The payload at a part of an outbox; null: so many bytes are not in one slot.
  std::byte* part(int channel, int index, size_t num_bytes) const;
  std::atomic<uint64_t>& steps_ended() const;
  RingEntry* posts() const;
  std::byte* post_buffer(size_t i) const;

 private:
  // `kept`: the same memory, for an owner that passes it on.
  Segment(int memory, const SegmentShape& shape, int protection, Descriptor kept);

  const Descriptor memory_;
  const SegmentShape shape_;
  std::byte* base_;
};

// The doorbell of one peer, shared by all lanes to it and by windows; any thread may ring it.
class Doorbell {
 public:
  // `event`: the peer's eventfd.
  Doorbell(std::shared_ptr<Segment> theirs, Descriptor event, Statistics& statistics)
      : theirs_(std::move(theirs)), event_(std::move(event)), statistics_(statistics) {}

  void message_posted() {
    if (theirs_->header().sleepers.load(std::memory_order_seq_cst) != 0) ring();
  }
  void space_freed() {
    const SegmentHeader& header = theirs_->header();
    if (header.sleepers.load(std::memory_order_seq_cst) != 0 &&
        header.starved.load(std::memory_order_relaxed) != 0) {
      ring();
    }
  }

 private:
  void ring();

  const std::shared_ptr<Segment> theirs_;
  const Descriptor event_;
  Statistics& statistics_;
  // The sleep that it was rung for last. Orders nothing: of two threads, one rings.
  std::atomic<uint32_t> rung_{0};
};

}  // namespace hccl
