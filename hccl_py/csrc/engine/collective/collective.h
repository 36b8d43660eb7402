// Runs the plan of one collective: tile i on channel i mod channels, each channel in order.
//
// An average is a sum that is divided at the end. If a sum of finite floats overflows, its chunk
// from then on holds the sum times 2^-k, with 2^k above the number of ranks: messages flag such
// chunks, a rank that adds to them scales its operands down, and the end divides by less. Nothing
// else is scaled, so small numbers lose no bits beside numbers whose sum does not overflow.
#pragma once

#include <algorithm>
#include <exception>
#include <memory>
#include <utility>
#include <vector>

#include "engine/calls/failure.h"
#include "engine/calls/plan.h"
#include "engine/calls/stragglers.h"
#include "engine/collective/scaled_ranges.h"
#include "engine/collective/steps_over_board.h"
#include "reduce/reduce.h"

namespace hccl {

// Two ranks called different collectives, or the same one with different arguments.
struct Mismatch : std::exception {
  explicit Mismatch(Failure its_failure) : failure(std::move(its_failure)) {}
  const char* what() const noexcept override { return "ranks made different calls"; }

  Failure failure;
};

// Runs the ops of a plan in order, tile by tile, with messages over the board or the lanes.
class Channel {
 public:
  // `index` of `num_channels`. `stragglers` and `coded`, the cost of compressed messages, are those
  // of all channels of a communicator, and outlive this.
  Channel(int rank, int world_size, size_t slot_bytes, int index, int num_channels,
          Stragglers& stragglers, CompressionStatistics& coded);

  std::vector<std::unique_ptr<Lane>>& lanes() { return over_lanes_.lanes(); }

  // Whether other ranks' calls are compared with this one; off only to measure the cost. Before the
  // first call.
  void set_checks(bool checks) { checks_ = checks; }
  // The board for the first tile of a small call; outlives this.
  void set_board(Board& board) { over_board_.set_board(board); }
  // Null: the parts of a call are not timed.
  void set_profile(Profile* profile) { profile_ = profile; }
  void start(const Call& call, const Tiling& tiling);
  // Runs ops until one must wait. True if anything moved. Throws LaneError, Mismatch.
  bool step();
  bool flush();
  bool finished() const { return call_ == nullptr && over_lanes_.unsettled().empty(); }
  bool unflushed() const {
    return !over_lanes_.unsettled().empty() || over_board_.lacks_room() ||
           room_deadline() != Deadline::max();
  }
  // When it stops to wait for room, if it does.
  Deadline room_deadline() const { return over_lanes_.room_deadline(); }
  // Throws Mismatch if a rank has sent a message of another call than `fingerprint`, with the same
  // number or an earlier one. A rank that is ahead may not need this rank's data.
  void look_for_strays(uint64_t fingerprint);

  // The progress of the call, and the ranks that it waits for.
  Stage stage() const;
  std::vector<int> waiting_for() const;
  // Of this channel's tiles; an op counts for its part of a tile.
  double tiles_done(const Tiling& tiling) const;

 private:
  struct Group {  // elements [begin, end) of a message
    int number;
    size_t begin;
    size_t end;
  };
  bool run(const Op& op);
  bool end_step();
  bool run_send(const Op& op);
  bool run_recv(const Op& op);
  bool run_recv_reduce(const Op& op);
  const std::byte* part_of(const Op& op, const Span& destination);
  const std::byte* readable(const ChunkRef& chunk, const Span& span);
  uint8_t* unwritten_in(const ChunkRef& chunk);
  void bring_input(const ChunkRef& chunk);
  void note_written(const ChunkRef& chunk);
  void reduce_sources(const Op& op, const Span& span, uint16_t mine_scaled);
  bool reduce_group(const Op& op, const Span& span, const Group& group, bool mine_is_scaled,
                    size_t done);
  // Where this rank's part stands among the sources of a recv_reduce: they are in rank order.
  std::ptrdiff_t place_of_mine(std::span<const int> peers) const {
    return std::find_if(peers.begin(), peers.end(), [&](int peer) { return peer > rank_; }) -
           peers.begin();
  }
  // The parts of an op's chunks that a message tells apart, at most 16.
  int num_groups(const ChunkRef& chunk) const { return std::min(chunk.end - chunk.begin, 16); }
  Group group_of(const ChunkRef& chunk, const Span& span, int number) const;
  bool scaled_groups(const ChunkRef& chunk, const Span& span, uint16_t& groups);
  void note_scaled(const ChunkRef& chunk, const Span& span, uint16_t groups);
  void move_scaled(std::byte* from, std::byte* to, size_t num_bytes);
  void scale_down(std::byte* begin, size_t count);
  void divide(const Span& span);
  bool run_copy(const Op& op);
  void begin_steps(const Call& call, bool on_board);
  void begin_tile();
  void copy_input(const Span& to);
  bool is_on_board() const { return steps_ == &over_board_; }
  bool may_overwrite(const Span& span) {
    return over_lanes_.may_overwrite(span.address, span.count * item_size_);
  }
  void look_for_stray(int peer, const Header* header, uint64_t fingerprint);
  void check(const Header& header, const Op& op, int peer_index, const Span& span);
  bool is_compressed(const Op& op, int peer_index) const {
    return call_->compression != Compression::none && call_->plan->is_compressed(op, peer_index);
  }
  size_t message_bytes(const Op& op, int peer_index, const Span& span) const {
    return is_compressed(op, peer_index) ? encoded_bytes(call_->compression, span.count)
                                         : span.count * item_size_;
  }
  const std::byte* encode_source(const Op& op, const Span& span);
  void decode_payload(const std::byte* payload, std::byte* to, size_t count);
  std::byte* free_encoding();
  bool end_tile();
  Span resolve(const ChunkRef& chunk);
  // A rank without data sends one empty message; otherwise a call without elements would not be
  // noticed.
  bool is_told(const Span& span) const { return span.count > 0 || (tells_empty_ && tile_ == 0); }
  std::span<const int> peers_of(const Op& op) const {
    return std::span(call_->plan->peers)
        .subspan(static_cast<size_t>(op.peers_begin), static_cast<size_t>(op.num_peers));
  }

  const int rank_;
  const int world_size_;
  const size_t slot_bytes_;
  const int index_;
  const int num_channels_;
  Stragglers& stragglers_;
  CompressionStatistics& coded_;
  StepsOverLanes over_lanes_;
  StepsOverBoard over_board_{over_lanes_, profile_};
  Steps* steps_ = &over_lanes_;  // of this tile

  const Call* call_ = nullptr;
  const Tiling* tiling_ = nullptr;
  int64_t tile_ = 0;
  size_t next_op_ = 0;
  // Out of place: whether ops read a chunk of `data` from the input until they write it. By chunk
  // of the tile: not written yet.
  bool reads_input_ = false;
  std::vector<uint8_t> unwritten_;
  size_t item_size_ = 1;
  bool sender_waits_ = false;  // this rank waits, with payloads that may stay in place
  int ready_ = 0;              // recv_reduce: peers whose payload has arrived
  bool checks_ = true;
  Profile* profile_ = nullptr;
  bool tells_empty_ = false;  // blocks differ in length, or there are no elements at all

  std::vector<const std::byte*> sources_;
  ScaledRanges scaled_;        // of this call
  uint16_t given_scaled_ = 0;  // recv_reduce: groups that some peer's payload has scaled
  std::vector<std::byte> scaled_sources_;
  std::vector<std::byte> scratch_;
  // Payloads of compressed messages, a slot each, which lanes borrow; as many as ever were at once.
  std::vector<std::unique_ptr<std::byte[]>> encodings_;
  std::vector<std::byte> decoded_;  // payloads decoded by a recv_reduce, a slot for each such peer
};

}  // namespace hccl
