// Tiles that repeat themselves: the time of the rest of them is counted, not run.
//
// All tiles but the last have the same work. Once every rank ends each tile the same time after the
// one `period` before it, twice in a row, the tiles to come do so too. So a multiple of `period` of
// them is left out, and their time is added to the result.
//
// Ranks that are not alike may never repeat themselves exactly. After many messages the rest is
// counted by the mean time of the last two thirds of the tiles. By how much the two differ from
// each other says by how much the result may be off.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <vector>

namespace hccl::simulation {

struct TileEnd {
  int tile, rank;
  double at;
};

struct LeftOut {
  int num_tiles = 0;
  double us = 0;
  double error_us = 0;  // by how much `us` may be off
};

class Steadiness {
 public:
  // `is_coarse`: a thousandth more or less is the same time, where to run on would take minutes.
  // `exact_messages`: after these, tiles are counted by their mean.
  Steadiness(int num_ranks, bool is_coarse, int64_t exact_messages);

  // Notes the end of a tile of a rank, after so many messages of all; returns how many tiles there
  // are to be run.
  int note(const TileEnd& end, int num_tiles, int64_t num_messages);

  const LeftOut& left_out() const { return left_out_; }

 private:
  struct TileEnds {
    std::vector<double> at;  // by rank
    int missing;
  };

  // The time between tiles, if it is the same for all ranks and the last tiles.
  std::optional<double> distance_us(int tile, int period) const;
  // The tiles that are left out by the mean time of a tile.
  LeftOut by_mean(int tile, int num_tiles, int64_t num_messages) const;
  // How many tiles of those that have not begun can be left out, in whole periods.
  int most_left_out(int num_tiles, int period) const;

  int num_ranks_;
  bool is_coarse_;
  int64_t exact_messages_;
  LeftOut left_out_;
  int last_begun_ = 0;
  std::map<int, TileEnds> tiles_;  // the last ones
  std::map<int, double> mean_us_;  // of all that every rank has ended: when, on average
};

}  // namespace hccl::simulation
