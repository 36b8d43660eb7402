// One end of a lane over queue pairs before it can send: its queue pairs, the slots that the peer
// writes to, and a RECV for everything that may come.
//
// It is made before the queue pairs are connected: RECVs are posted from INIT on, so the first message
// of a peer finds one.
#pragma once

#include <memory>
#include <vector>

#include "lanes/lane.h"
#include "verbs/verbs.h"

namespace hccl {

// What lies in a slot behind the header of a message whose payload is not copied.
struct Note {
  uint64_t address = 0;  // of the payload; the answer that `reply` asks for is to be written there
  uint64_t reply = 0;    // number of the message of the receiver's that answers; 0: none
  uint32_t rkey = 0;
  uint32_t unused[3] = {};
};
static_assert(sizeof(Note) == 32);

class LaneSlots {
 public:
  static constexpr size_t num_slots = 8;
  // Messages, and for each of the peer's releases at most one write that returns credits.
  static constexpr size_t num_recvs = 2 * num_slots + 1;
  static constexpr size_t max_pairs = 16;

  // A queue pair, and what has gone over it. Messages take turns: message n, counted from 1, goes over
  // queue pair (n - 1) mod their number.
  struct Way {
    std::shared_ptr<QueuePairFace> pair;
    uint32_t lkey = 0;        // of all that is here
    uint32_t their_rkey = 0;  // of the peer's slots
    bool is_open = false;     // the peer has advertised its slots
    bool has_failed = false;
    uint64_t ended = 0;       // this side's messages up to this number that it carries have left
    uint64_t arrived = 0;     // messages of the peer's
  };

  // What each queue pair has to be made with.
  static QueuePairAttributes attributes();

  // Nothing was posted to the queue pairs, which are in INIT at least. Throws InvalidVerb, RdmaError.
  LaneSlots(std::vector<std::shared_ptr<QueuePairFace>> pairs, size_t slot_bytes);

  std::vector<Way>& ways() { return ways_; }
  const std::vector<Way>& ways() const { return ways_; }
  size_t slot_bytes() const { return slot_bytes_; }
  size_t stride() const { return stride_; }
  // Of the peer's message `number`, counted from 0; of ours.
  std::byte* in(uint64_t number) { return &memory_[number % num_slots * stride_]; }
  std::byte* out(uint64_t number) { return &memory_[(num_slots + number % num_slots) * stride_]; }

  // Tells the peer where its messages go, over each queue pair; these are in RTS.
  void advertise();
  // Takes the peer's advertisement, of `length` bytes; returns what is wrong with it.
  std::string take_advertisement(Way& way, size_t length);
  // Whether the peer has advertised over all queue pairs, and where its slots are.
  bool is_complete() const { return num_advertised_ == ways_.size(); }
  uint64_t their_address() const { return their_address_; }

 private:
  // Where the peer's messages go. It travels in the first SEND of each queue pair.
  struct Advertisement {
    uint64_t magic;
    uint64_t address;
    uint64_t slot_bytes;
    uint32_t num_slots;
    uint32_t rkey;
  };

  std::byte* mine(size_t way) { return &memory_[2 * num_slots * stride_ + 2 * way * sizeof(Advertisement)]; }
  std::byte* theirs(size_t way) { return mine(way) + sizeof(Advertisement); }

  const size_t slot_bytes_;
  const size_t stride_;
  // Slots of the peer's messages, slots of ours, advertisements.
  std::vector<std::byte> memory_;
  std::vector<uint32_t> rkeys_;  // of the slots of the peer's messages, by way
  uint64_t their_address_ = 0;
  size_t num_advertised_ = 0;
  std::vector<Way> ways_;  // destroyed before the memory
};

}  // namespace hccl
