// Collectives on registered memory: every rank works on the memory of all, nothing is sent but
// where it lies.
//
//   1. announce   every rank tells every other where its part of the call's memory lies
//   2. work       each does its share: reads what others lent, writes where others want it
//   3. close      each tells every other that it is done; nobody returns before all have
//
// A rank whose call fails in between gets its memory back while others still read it. It says so in
// its segment first, and a call ends well only if, after everything was read, no rank had said so.
//
// Who wrote before it announced (1), or before it was done (3), is seen by whoever heard that: a
// message is published with a seq_cst store that pairs with the load in the lane's peek().
//
// All ranks take the same decision from the same announcements, so memory that is registered on
// some of them only makes the call run its plan instead, on all.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/arena.h"
#include "lanes/lane.h"
#include "engine/lateness.h"
#include "engine/plan.h"
#include "lanes/segment.h"

namespace hccl {

// What runs one call at a time for a communicator whose ranks all share a node. Touched by its
// driver only.
class InPlace {
 public:
  enum class State { idle, announcing, working, closing, declined, finished };

  // `lanes`: by rank, of the channel that the messages go over; `segments`: of the other ranks. Both
  // outlive this. `arena` may be nullptr: then every call is declined. `lateness` as in Channel.
  InPlace(int rank, std::vector<std::unique_ptr<Lane>>& lanes,
          const std::vector<std::shared_ptr<Segment>>& segments, std::shared_ptr<Arena> arena,
          Lateness& lateness);

  // The registered memory of a peer. Without it, every call is declined.
  void set_window(int peer, std::shared_ptr<ArenaWindow> theirs);

  // Whether the ranks of this call begin it here: the same answer on all of them.
  static bool wants(const Call& call);
  void begin(const Call& call);
  // Goes on until it has to wait, or for one piece of work. True if anything moved. Throws
  // LaneError, Mismatch.
  bool step();
  // declined and finished are for the caller to see; leave() ends them.
  State state() const { return state_; }
  void leave() { state_ = State::idle; }
  // For a communicator that has failed. Peers may go on writing for a moment: what was lent to them
  // will never be allocated for something else.
  void abandon();

  bool unflushed() const { return !backlog_.empty(); }
  // For messages: what it is waiting for, and whom.
  Stage stage() const;
  std::vector<int> waiting_for() const;

 private:
  // What a rank tells one other: offsets in its own arena.
  struct Announcement {
    uint32_t readable = 0;  // all that it lends to be read, to anyone, is registered
    uint32_t writable = 0;  // all that it lends to be written
    uint64_t source = 0;    // what the other may read
    uint64_t source_bytes = 0;
    uint64_t destination = 0;  // where the other may write
    uint64_t destination_bytes = 0;
  };

  // The same range of several buffers: one result of all sources goes to all destinations.
  struct Move {
    std::vector<const std::byte*> sources;
    std::vector<std::byte*> destinations;
    size_t count = 0;  // elements
  };

  struct Lent {
    const std::byte* address;
    size_t num_bytes;
  };

  Lent lent_source(int peer) const;
  Lent lent_destination(int peer) const;
  void announce();
  bool has_all_windows() const;
  void post(int peer, uint16_t kind, const Announcement* announcement);
  bool hear(uint16_t kind);
  void take(int peer, const Announcement& announcement);
  bool all(uint32_t Announcement::* flag) const;
  void decide();
  void reduce_everywhere();
  void copy_from_root();
  void give_to_all();
  void take_from_all();
  void reduce_to_mine();
  Move& add_move(size_t count);
  size_t share_begin(size_t count, int rank) const;
  std::byte* lent_by(int peer, uint64_t offset, uint64_t num_bytes) const;
  bool work();
  void run(const Move& move, size_t begin, size_t count);
  bool is_valid() const;

  const int rank_;
  const int world_size_;
  std::vector<std::unique_ptr<Lane>>& lanes_;
  const std::vector<std::shared_ptr<Segment>>& segments_;
  const std::shared_ptr<Arena> arena_;
  Lateness& lateness_;
  std::vector<std::shared_ptr<ArenaWindow>> windows_;  // by rank

  State state_ = State::idle;
  const Call* call_ = nullptr;
  size_t item_size_ = 1;
  std::vector<Announcement> told_;   // by rank; stays put until it left
  std::vector<Announcement> heard_;  // by rank; the own one too
  int next_peer_ = 0;                // whom to hear next
  Backlog backlog_;

  std::vector<Move> moves_;  // the first num_moves_ of them
  size_t num_moves_ = 0;
  size_t current_ = 0;
  size_t done_ = 0;  // elements of the current move
  std::vector<const std::byte*> block_sources_;
};

}  // namespace hccl
