// Lanes in memory that two ranks share: the provider for ranks of one node, and for threads.
//
// Every rank owns one segment and is the only one that writes to it; its peers map it read-only.
// A segment holds what the rank says to others:
//   - per (peer, channel) a ring of cells: one message each, a tiny payload right in the cell;
//   - per channel an outbox of slots: a larger payload is written once and read in place by every
//     rank it is meant for;
//   - per (peer, channel) a counter of the peer's messages that this rank has consumed;
//   - a count of its sleeping threads, so that peers know when to ring its doorbell.
#pragma once

#include <atomic>
#include <memory>
#include <vector>

#include "queue_pair.h"

namespace hccl {

struct SegmentShape {
  int num_local_ranks = 1;
  int num_channels = 1;
  int num_slots = 8;          // per channel
  size_t slot_bytes = 131072;  // a multiple of 4096
};

inline constexpr int ring_cells = 64;
inline constexpr size_t inline_bytes = 88;

struct alignas(128) Cell {
  // Stored last by the sender, seq_cst; pairs with the receiver's load in ShmQueuePair::peek, and
  // with SegmentHeader::sleepers: either the sleeper sees the message or the sender sees the sleeper.
  std::atomic<uint32_t> sequence;
  int32_t slot;  // -1: the payload is in the cell
  Header header;
  std::byte payload[inline_bytes];
};
static_assert(sizeof(Cell) == 128);

struct alignas(64) ConsumedCounter {
  // Stored by the receiver after it is done with a slot; pairs with the load in reclaim().
  std::atomic<uint64_t> count;
};

struct alignas(64) SegmentHeader {
  // Raised before the last look at the lanes and the sleep that follows; pairs with Cell::sequence
  // and ConsumedCounter::count.
  std::atomic<uint32_t> sleepers;
};

// Shared memory of one rank. Owner: mapped writable. Peer: mapped read-only.
class Segment {
 public:
  // A new sealed memfd: no name in the file system, nothing left behind by a crash.
  static std::shared_ptr<Segment> create(const SegmentShape& shape);
  // A peer's segment. Throws std::invalid_argument if it is smaller than the shape says.
  static std::shared_ptr<Segment> open(int fd, const SegmentShape& shape);
  ~Segment();
  Segment(const Segment&) = delete;
  Segment& operator=(const Segment&) = delete;

  int fd() const { return fd_; }
  const SegmentShape& shape() const { return shape_; }
  SegmentHeader& header() const;
  ConsumedCounter& consumed(int local_rank, int channel) const;
  Cell* ring(int local_rank, int channel) const;
  std::byte* slot(int channel, int index) const;

 private:
  Segment(int fd, const SegmentShape& shape, bool writable);
  static size_t size_of(const SegmentShape& shape);

  int fd_;
  SegmentShape shape_;
  std::byte* base_;
};

// The slots of one channel in this rank's segment, and who still reads them.
//
// One free slot stays reserved for every lane that holds no slot of its own, so a slow reader can
// never starve another lane: each lane always has room for one message.
class Outbox {
 public:
  Outbox(std::shared_ptr<Segment> segment, int channel);

  // Takes back every slot that its readers are done with; call it before take.
  void reclaim();
  // A slot for one lane (`lane_holds_none`: it holds no other slot) or for several; -1 if none.
  int take(bool lane_holds_none);
  int take_for_many();
  void share(int slot, int num_readers) { readers_[slot] = num_readers; }
  void done_reading(int slot);
  void lane_became_empty() { ++empty_lanes_; }
  void lane_was_filled() { --empty_lanes_; }
  std::byte* slot(int index) const { return segment_->slot(channel_, index); }
  void add_lane(class ShmQueuePair* lane);

 private:
  std::shared_ptr<Segment> segment_;
  const int channel_;
  std::vector<int> free_;  // last in, first out: the slot freed last is still in the cache
  std::vector<int> readers_;
  std::vector<class ShmQueuePair*> lanes_;
  int empty_lanes_ = 0;
};

class ShmQueuePair final : public QueuePair {
 public:
  struct Ends {
    std::shared_ptr<Segment> mine;
    std::shared_ptr<Segment> theirs;
    int my_local_rank = 0;
    int their_local_rank = 0;
    int their_doorbell = -1;  // eventfd, borrowed
    int channel = 0;
  };

  ShmQueuePair(int peer, const Ends& ends, std::shared_ptr<Outbox> outbox, Statistics& statistics);

  bool shares_payload() const override { return true; }
  bool post_send_to_all(std::span<QueuePair* const> lanes, const Header& header,
                        const std::byte* payload) override;
  const Header* peek() override;
  const std::byte* lend() override;
  bool receive(std::byte* destination) override;
  void release() override;

  // Takes back the slots that the peer has read.
  void reclaim();

 protected:
  bool push(const Header& header, const std::byte* payload, size_t& offset) override;

 private:
  bool ring_is_full();
  void publish(const Header& header, const std::byte* payload, int slot, bool shared);
  void wake_peer();

  const Ends ends_;
  std::shared_ptr<Outbox> outbox_;
  Cell* const out_;                 // in my segment
  const Cell* const in_;            // in theirs
  ConsumedCounter& my_consumed_;    // in my segment
  const ConsumedCounter& their_consumed_;
  const SegmentHeader& their_header_;
  uint64_t sent_ = 0;
  uint64_t reclaimed_ = 0;
  uint64_t received_ = 0;
  int own_slots_ = 0;  // slots that this lane alone holds
  struct Sent {
    int slot;
    bool shared;
  };
  Sent sent_slots_[ring_cells];
};

}  // namespace hccl
