// The messages of a rank to all ranks of its node, written once per step.
//
// A message by lane costs both ends several cache lines for each peer. In a step of small messages
// a rank writes all its messages into one entry of its segment, which all peers read, and confirms
// its reads with one counter. A payload too long for the entry is in a buffer, one too long for
// that is sent by lane. The entry says which, so no rank needs to know the others' sizes.
//
// All ranks of a node take the same steps in the same order; the plan has the ops of a step.
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
  // The same payload for each of `peers`; peers on other nodes are ignored. `peers` and
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

  // ---- this rank's messages in this step: at most one per peer, then post()
  void add(const Message& message) { messages_.push_back(message); }
  const std::vector<Message>& messages() const { return messages_; }
  // `by_lane`: the caller sends the messages by lane. `no_room`: wait for behind().
  Posted post();
  // The ranks that have not yet read the content at the place of the next post.
  std::vector<int> behind() const;

  // ---- a peer's messages in this step
  // Null: nothing yet. If the peer made another call in an earlier, skipped step, that message
  // instead. Throws LaneError for invalid contents.
  const Header* peek(int rank);
  // Of what was peeked. Null: by lane.
  const std::byte* payload(int rank) const { return peers_[static_cast<size_t>(rank)]->payload; }

  // This rank has finished reading. `fingerprint`: its call.
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
  uint64_t step_ = 1;              // the one under way
  uint64_t ended_by_all_ = 0;      // as far as checked
  uint64_t awaited_ = 0;           // the next post waits for the end of this step
  std::vector<uint64_t> used_in_;  // the step in which a buffer was written last
  size_t next_buffer_ = 0;
  std::array<uint64_t, post_entries> fingerprints_{};  // of the last steps
};

}  // namespace hccl
