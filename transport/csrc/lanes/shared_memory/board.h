// The messages of a rank to all ranks of its node, written once per step.
//
// A message by lane costs both ends several cache lines for each peer. In a step of small messages
// a rank writes all that it sends into one entry of its segment, for everybody to read, and says
// with one counter that it has read what it was sent. A payload too long for the entry lies in a
// buffer, one too long for that travels by lane, and the entry says so: nobody has to know what
// others send.
//
// All ranks of a node take the same steps in the same order; the ops of a step stand in its plan.
#pragma once

#include <array>
#include <memory>
#include <span>
#include <vector>

#include "lanes/shared_memory/distance.h"
#include "lanes/shared_memory/segment.h"

namespace hccl {

class Board {
 public:
  // The same payload for each of `peers`; those of other nodes are passed over. `peers` and
  // `payload` are borrowed until the step ends.
  struct Message {
    std::span<const int> peers;
    Header header;
    const std::byte* payload;
  };
  enum class Posted { whole, by_lane, no_room };

  Board(std::shared_ptr<Segment> mine, int local_rank, int world_size,
        std::shared_ptr<Distance> distance, Statistics& statistics);
  void add_peer(int rank, int their_local_rank, std::shared_ptr<Segment> theirs,
                std::shared_ptr<Doorbell> bell);

  bool has(int rank) const { return peers_[static_cast<size_t>(rank)] != nullptr; }

  // ---- what this rank says in this step: all messages, at most one for a peer, then post()
  void add(const Message& message) { messages_.push_back(message); }
  const std::vector<Message>& messages() const { return messages_; }
  // `by_lane`: the caller sends the messages by lane. `no_room`: wait for behind().
  Posted post();
  // The ranks that have still to read what lies where the next post would be written.
  std::vector<int> behind() const;

  // ---- what a peer says in this step
  // Null: nothing yet. Instead, what it said in an earlier step that was passed over, if it
  // belonged to another call. Throws LaneError for what no sane peer writes.
  const Header* peek(int rank);
  // Of what was peeked. Null: by lane.
  const std::byte* payload(int rank) const { return peers_[static_cast<size_t>(rank)]->payload; }

  // This rank has read all that it will. `fingerprint`: its call.
  void end_step(uint64_t fingerprint);

 private:
  struct Peer {
    int rank;
    int local_rank;
    std::shared_ptr<Segment> segment;
    std::shared_ptr<Doorbell> bell;
    // The step of what follows: what the peer does to its entry later is not seen.
    uint64_t peeked = 0;
    Header header{};
    const std::byte* payload = nullptr;
  };

  bool find_passed_over(Peer& peer) const;
  bool all_have_ended(uint64_t step);
  size_t count_bytes() const;
  void write(std::byte* to);

  const std::shared_ptr<Segment> segment_;
  const int local_rank_;
  const std::shared_ptr<Distance> distance_;
  Statistics& statistics_;
  std::vector<std::unique_ptr<Peer>> peers_;  // by rank; null: not of this node, or this one
  std::vector<Peer*> local_peers_;
  std::vector<Message> messages_;
  uint64_t step_ = 1;                             // the one under way
  uint64_t ended_by_all_ = 0;                     // as far as was looked
  uint64_t awaited_ = 0;                          // the step whose end the next post waits for
  std::array<uint64_t, post_buffers> used_in_{};  // the step in which a buffer was written last
  size_t next_buffer_ = 0;
  std::array<uint64_t, post_entries> fingerprints_{};  // of the last steps
};

}  // namespace hccl
