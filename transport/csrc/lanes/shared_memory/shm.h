// Lanes in memory that two ranks share: the provider for ranks of one node, and for threads.
//
// segment.h defines the layout of the memory and the writer of each part.
//
// A payload is sent in one of four ways. A tiny one is in the entry, a larger one in a slot
// (eager), one longer than a slot in several, each with an entry, which the receiver takes in turn.
// One of 16 KiB or more in registered memory is announced (rendezvous): the entry has its address,
// the receiver reads it there, and the sender must not change it before the receiver has released
// it. One whose call is in CopyMode::single stays in ordinary memory in the same way until the
// receiver has had the kernel copy it (remote). A long one whose sender only waits is copied by
// both (joint_copy.h). An announced payload may request a reply: the receiver writes one of its
// later messages there (replies.h).
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "base/memory/arena.h"
#include "lanes/lane.h"
#include "lanes/shared_memory/joint_copy.h"
#include "lanes/shared_memory/outbox.h"
#include "lanes/shared_memory/remote_memory.h"
#include "lanes/shared_memory/replies.h"
#include "lanes/shared_memory/segment.h"

namespace hccl {

class ShmLane final : public QueuedLane {
 public:
  struct Ends {
    std::shared_ptr<Segment> mine;
    std::shared_ptr<Segment> theirs;
    int my_local_rank = 0;
    int their_local_rank = 0;
    std::shared_ptr<Doorbell> their_doorbell;
    int channel = 0;
  };

  ShmLane(int peer, const Ends& ends, std::shared_ptr<Outbox> outbox, Statistics& statistics);

  // Messages in `mine` are then announced if the peer maps it, and messages in `theirs` are read.
  // Before the first message; either may be nullptr. Below `min_announced_bytes`, the copy costs
  // less than the wait until the receiver has read the payload.
  void set_arenas(std::shared_ptr<Arena> mine, std::shared_ptr<ArenaWindow> theirs,
                  size_t min_announced_bytes = 16384);

  // From now on messages may have max_long_bytes. Before the first message.
  void take_long_messages() { max_message_bytes_ = max_long_bytes; }

  // From now on messages may lie in the memory of `process`, in which the peer runs, if it lets us
  // read. False: it does not.
  bool read_from(pid_t process);

  uint64_t completed() const override;
  bool settled() const override { return flushed() && num_announced_ == 0; }
  bool flush() override;
  void detach() override;
  bool abandon() override;
  bool shares_payload() const override { return true; }
  bool is_drained() const override { return sent_ == reclaimed_; }
  Shared post_send_to_all(std::span<Lane* const> lanes, const Header& header,
                          const std::byte* payload) override;
  const Header* peek() override;
  const std::byte* lend() override;
  bool receive(std::byte* destination) override;
  void release() override;

  // Frees the slots that the peer has read.
  void reclaim();
  bool holds_slot() const { return own_slots_ > 0; }

 protected:
  bool push(const Header& header, const std::byte* payload) override;
  uint64_t num_released() const override { return received_; }

 private:
  struct Sent {
    int slot;
    bool shared;
    uint64_t number;                    // as post_send returned it; unused for a shared slot
    const std::byte* source = nullptr;  // of a remote payload
    size_t num_bytes = 0;               // 0: the sender does not help to copy it
  };

  bool ring_is_full();
  std::optional<uint64_t> offset_of(const Header& header, const std::byte* payload) const;
  bool stays_in_place(const Header& header) const;
  bool push_parts(const Header& header, const std::byte* payload);
  bool has_entry() const;
  bool receive_parts(std::byte* destination);
  bool help_to_copy();
  bool receive_remote(std::byte* destination);
  [[noreturn]] void throw_unreadable() const;
  void free_entry();
  uint64_t ask_for_reply(const Header& header, const std::byte* payload);
  const Reply* reply_for(const Header& header);
  const Reply* asked_for() const;
  std::byte* find_payload(const RingEntry& entry);
  std::byte* find_part(size_t num_bytes) const {
    return ends_.theirs->part(ends_.channel, slot_, num_bytes);
  }
  void check_valid() const;
  // These push, and return true.
  bool announce(const Header& header, const std::byte* payload, uint64_t offset);
  bool leave_in_place(const Header& header, const std::byte* payload);
  bool write_reply(const Header& header, const Reply& reply, const std::byte* payload);
  bool publish(const Header& header, const std::byte* payload, int slot, bool shared);

  const Ends ends_;
  std::shared_ptr<Outbox> outbox_;
  RingEntry* const out_;          // in my segment
  const RingEntry* const in_;     // in theirs
  ConsumedCounter& my_consumed_;  // in my segment
  const ConsumedCounter& their_consumed_;
  uint64_t sent_ = 0;
  uint64_t reclaimed_ = 0;
  uint64_t received_ = 0;
  // Of a message in several slots, how much was sent, and received.
  size_t pushed_bytes_ = 0, taken_bytes_ = 0;
  // A copy of the peeked message: later changes of its entry by the peer must not bypass the
  // checks.
  uint64_t peeked_ = 0;  // its number, while there is one
  Header header_;
  int slot_ = -1;
  int own_slots_ = 0;  // slots that only this lane holds
  Sent sent_slots_[ring_entries];

  std::shared_ptr<Arena> arena_;  // nullptr: nothing is announced
  size_t min_announced_bytes_ = 0;
  std::shared_ptr<ArenaWindow> their_arena_;
  int num_announced_ = 0;         // messages, remote ones included, that the peer has not released
  std::byte* payload_ = nullptr;  // of the peeked message, if it is not in the entry
  std::optional<RemoteMemory> their_memory_;
  JointReader joint_reader_;
  JointWriter joint_writer_;
  uint64_t remote_address_ = 0;  // of the peeked message's payload
  Replies asked_;                // where the peer writes some of its messages
  Reply offered_;                // destination that the peeked message offers for one of ours
  Replies promised_;             // the same, of messages that were released
};

}  // namespace hccl
