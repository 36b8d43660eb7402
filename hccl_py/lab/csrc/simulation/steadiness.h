// Tiles that repeat themselves: the time of the remaining ones is extrapolated, they are not run.
//
// All tiles but the last have the same work. If every rank ends each tile the same time after the
// tile `period` before it, twice in a row, later tiles do so too. So a multiple of `period` of them
// is left out, and their time is added to the result.
//
// Ranks that are not alike may never repeat themselves exactly. After many messages the mean time
// of the last two thirds of the tiles extrapolates the rest. The difference between the two thirds
// estimates the error.
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
  double error_us = 0;  // estimated error of `us`
};

class Steadiness {
 public:
  // `is_coarse`: times that differ by a thousandth count as equal, because more tiles would take
  // minutes. `exact_messages`: after so many messages, the mean of tiles extrapolates the rest.
  Steadiness(int num_ranks, bool is_coarse, int64_t exact_messages);

  // Notes that a rank has ended a tile, after `num_messages` of all ranks, copies included; returns
  // the number of tiles to run.
  int note(const TileEnd& end, int num_tiles, int64_t num_messages);

  const LeftOut& left_out() const { return left_out_; }

 private:
  struct TileEnds {
    std::vector<double> at;  // by rank
    int missing;
  };

  // The time between the last tiles, if it is the same for all of them and for all ranks.
  std::optional<double> distance_us(int tile, int period) const;
  // The tiles to leave out by the mean time of a tile.
  LeftOut by_mean(int tile, int num_tiles, int64_t num_messages) const;
  // How many of the tiles that have not begun can be left out, in whole periods.
  int most_left_out(int num_tiles, int period) const;

  int num_ranks_;
  bool is_coarse_;
  int64_t exact_messages_;
  LeftOut left_out_;
  int last_begun_ = 0;
  std::map<int, TileEnds> tiles_;  // the last ones
  std::map<int, double> mean_us_;  // by tile that every rank has ended, the mean of the ends
};

}  // namespace hccl::simulation
