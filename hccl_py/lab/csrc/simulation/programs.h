// The plans of all ranks, with the bytes of their chunks.
//
// In a large world most plans are alike except for their peers: a *move* maps group k of ranks to
// group k + s (modulo their number) or k XOR s, and a rank to the rank at the same place in its new
// group. Then only the plans of the first group are kept, and the peers of another rank are the
// moved peers of the rank at its place in the first group.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <tuple>
#include <vector>

namespace hccl::simulation {

enum class Move : uint8_t { none, rotation, exclusive_or };

enum class SimulatedOpKind : uint8_t {
  send = 0,
  recv = 1,
  recv_reduce = 2,
  copy = 3
};  // as in a plan

struct SimulatedOp {
  SimulatedOpKind kind;
  int space;  // in which a send reads `begin` to `end`, or another op writes; 0: never overwritten
  int begin, end;
  int first;  // the index of its first message in the plan
  int num_peers;
  double mib[2];  // in a full tile, and in the last one
};

struct RankProgram {
  std::vector<SimulatedOp> ops;
  std::vector<int> peers;    // by message, for the rank that this plan was written for
  std::vector<int> op_of;    // by message
  std::vector<int> slot_of;  // by message, its lane among those of the receiver
  std::vector<int> sources;  // the ranks that the plan receives from, ascending
};

// A send without a receive: rank, op, peer.
using Unmatched = std::tuple<int, int, int>;

class Programs {
 public:
  static constexpr int scratch = 3;  // the space that all tiles share
  static constexpr int op_columns = 7;

  // `groups`: the ranks of each group by place; without a move each rank is a group.
  Programs(Move move, std::vector<std::vector<int>> groups);

  // Adds the plan of the next rank of the first group, or without a move of the next rank. Each row
  // of `ops`: kind, space, begin, end, bytes in a full tile and in the last one, number of peers.
  void add(std::span<const int32_t> ops, std::span<const int32_t> peers);
  // Call it after the last `add`. Returns a send without a receive, if there is one.
  std::optional<Unmatched> match();

  const RankProgram& of(int rank) const { return programs_[index(rank)]; }
  // The index of a rank's plan in the order of `add`.
  int index(int rank) const { return move_ == Move::none ? rank : place_[rank]; }
  int peer(int rank, int message) const {
    int peer = of(rank).peers[message];
    return move_ == Move::none ? peer : moved(peer, group_[rank]);
  }

 private:
  // The rank that `rank` maps to when the first group maps to group `to`.
  int moved(int rank, int to) const {
    int count = static_cast<int>(groups_.size()), group = group_[rank];
    int there = move_ == Move::rotation ? (group + to < count ? group + to : group + to - count)
                                        : group ^ to;
    return groups_[there][place_[rank]];
  }
  // The rank that `rank` maps to when group `from` maps to the first one.
  int moved_back(int rank, int from) const {
    int count = static_cast<int>(groups_.size());
    return moved(rank, move_ == Move::rotation ? (count - from) % count : from);
  }

  Move move_;
  std::vector<std::vector<int>> groups_;
  std::vector<int> group_, place_;  // by rank
  std::vector<RankProgram> programs_;
};

}  // namespace hccl::simulation
