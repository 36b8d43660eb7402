// One end of a lane over queue pairs before it can send: its queue pairs, the slots that the peer
// writes to, and a RECV for everything that may arrive.
//
// It is made before the queue pairs are connected: RECVs are posted from INIT on, so the first
// message of a peer finds one. The queue pairs of one device are a path. The lane uses the first
// path, and the next one when that fails; all paths have the same slots.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "lanes/lane.h"
#include "verbs/verbs.h"

namespace hccl {

// Follows the header in the slot of a message whose payload is not copied.
struct Note {
  uint64_t address = 0;  // of the payload; the destination of the answer that `reply` requests
  uint64_t reply = 0;    // number of the message of the receiver's that answers; 0: none
  uint32_t rkey = 0;
  uint32_t unused[3] = {};
};
static_assert(sizeof(Note) == 32);

class LaneSlots {
 public:
  static constexpr size_t num_slots = 8;
  // Messages, for each of the peer's releases at most one write that returns credits, and the
  // writes that follow what is sent again on another path, or the last message.
  static constexpr size_t num_recvs = 2 * num_slots + 2;
  static constexpr size_t max_pairs = 16;  // of a path
  using Pairs = std::vector<std::shared_ptr<QueuePairInterface>>;

  // A queue pair, and its messages. Messages take turns: message n, counted from 1, goes
  // over queue pair (n - 1) mod their number.
  struct Way {
    std::shared_ptr<QueuePairInterface> pair;
    uint32_t lkey = 0;        // of our messages' slots and the advertisements
    uint32_t slots_lkey = 0;  // of the slots of the peer's messages
    uint32_t slots_rkey = 0;  // of the same, for the peer
    uint32_t their_rkey = 0;  // of the peer's slots
    bool is_open = false;     // the peer has advertised its slots
    size_t num_recvs = 0;     // posted, and not completed
    uint64_t ended = 0;       // this side's messages up to this number that it carries have left
  };
  // The progress of a lane's end when it starts to use a path.
  struct Progress {
    uint64_t released = 0;  // messages of the other end
    uint64_t whole = 0;  // of the following ones, which are here: bit i is message released + 1 + i
    bool operator==(const Progress&) const = default;
  };
  struct Path {
    std::vector<Way> ways;
    size_t num_open = 0;
    Progress theirs;  // once one way is open
    bool has_failed = false;

    // Whether the peer uses it too.
    bool is_complete() const { return num_open == ways.size(); }
  };

  // Required attributes of each queue pair.
  static QueuePairAttributes attributes();

  // The queue pairs of each path, equally many. They are in INIT or later, without posted requests.
  // Throws InvalidVerb, RdmaError.
  LaneSlots(std::vector<Pairs> paths, size_t slot_bytes);

  // Drops all paths but the first ones. Before the first message.
  void keep(size_t num_paths) { paths_.resize(std::min(num_paths, paths_.size())); }
  std::vector<Path>& paths() { return paths_; }
  const std::vector<Path>& paths() const { return paths_; }
  size_t slot_bytes() const { return slot_bytes_; }
  size_t stride() const { return stride_; }
  // Of the peer's message `number`, counted from 0; of ours.
  std::byte* in(uint64_t number) { return &memory_[number % num_slots * stride_]; }
  std::byte* out(uint64_t number) { return &memory_[out_at_ + number % num_out_ * stride_]; }
  // Slots of ours. A message has left its slot when it has ended; with another path, over which it
  // may have to go again, when the peer has released it.
  size_t num_out() const { return num_out_; }

  // Sends the peer the addresses of its slots and the received messages, over each queue pair of a
  // path; these are in RTS.
  void advertise(Path& path, const Progress& ours);
  // Accepts the peer's advertisement, of `length` bytes; returns its problem, if any.
  std::string take_advertisement(Path& path, Way& way, size_t length);
  uint64_t their_address() const { return their_address_; }

 private:
  // The peer's slots, sent in the first SEND of each queue pair.
  struct Advertisement {
    uint64_t magic;
    uint64_t address;
    uint64_t slot_bytes;
    uint32_t num_slots;
    uint32_t rkey;
    Progress progress;
  };
  // Frees with the same alignment.
  struct FreePages {
    void operator()(std::byte* pages) const;
  };

  void prepare(Path& path, Way& way, const Way* sharing);
  std::byte* mine(const Path& path, const Way& way);
  std::byte* theirs(const Path& path, const Way& way) {
    return mine(path, way) + sizeof(Advertisement);
  }

  const size_t slot_bytes_;
  const size_t stride_;
  const size_t num_out_;
  const size_t out_at_;  // of a page, as the end: a device registers whole pages
  const size_t num_bytes_;
  // Slots of the peer's messages; slots of ours, and advertisements.
  const std::unique_ptr<std::byte[], FreePages> memory_;
  uint64_t their_address_ = 0;
  std::vector<Path> paths_;  // destroyed before the memory
};

}  // namespace hccl
