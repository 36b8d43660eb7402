#include "simulation/steadiness.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace hccl::simulation {

namespace {

constexpr int num_channels = 2;
constexpr int periods[] = {2, 4};  // of two channels
constexpr int repeats = 2;
constexpr double alike = 1e-9, nearly_alike = 1e-3;
constexpr int spare_tiles = 2;
constexpr int remembered_tiles = 24;
// The two thirds must agree, unless there were `most_exact` times as many messages.
constexpr double close_enough = 0.01;
constexpr int most_exact = 3;
constexpr double safety = 3;  // observed errors were up to 1.2 times the difference of the thirds
constexpr int fewest_tiles = 4;

}  // namespace

Steadiness::Steadiness(int num_ranks, bool is_coarse, int64_t exact_messages)
    : num_ranks_(num_ranks), is_coarse_(is_coarse), exact_messages_(exact_messages) {}

int Steadiness::note(const TileEnd& end, int num_tiles, int64_t num_messages) {
  auto [found, is_new] = tiles_.try_emplace(end.tile);
  TileEnds& ends = found->second;
  if (is_new) ends = {std::vector<double>(num_ranks_), num_ranks_};
  ends.at[end.rank] = end.at;
  --ends.missing;
  last_begun_ = std::max(last_begun_, end.tile + num_channels);
  if (ends.missing > 0 || left_out_.num_tiles > 0) return num_tiles;
  mean_us_[end.tile] = std::accumulate(ends.at.begin(), ends.at.end(), 0.0) / num_ranks_;
  tiles_.erase(end.tile - remembered_tiles);
  for (int period : periods) {
    auto distance = distance_us(end.tile, period);
    int count = most_left_out(num_tiles, period);
    if (!distance || count <= 0) continue;
    double us = count / period * *distance;
    left_out_ = {count, us, is_coarse_ ? nearly_alike * us : 0.0};
    return num_tiles - count;
  }
  if (num_messages > exact_messages_) left_out_ = by_mean(end.tile, num_tiles, num_messages);
  return num_tiles - left_out_.num_tiles;
}

std::optional<double> Steadiness::distance_us(int tile, int period) const {
  // Newest first: the ends of `tile`, of the one before it, ...
  std::vector<const TileEnds*> ends;
  for (int back = 0; back < (repeats + 1) * period; ++back) {
    auto found = tiles_.find(tile - back);
    if (found == tiles_.end() || found->second.missing > 0) return std::nullopt;
    ends.push_back(&found->second);
  }
  double sum = 0, least = HUGE_VAL, most = 0;
  for (int newer = 0; newer < repeats * period; ++newer) {
    for (int rank = 0; rank < num_ranks_; ++rank) {
      double distance = ends[newer]->at[rank] - ends[newer + period]->at[rank];
      sum += distance;
      least = std::min(least, distance);
      most = std::max(most, distance);
    }
  }
  double mean = sum / (static_cast<double>(repeats) * period * num_ranks_);
  double latest = *std::max_element(ends[0]->at.begin(), ends[0]->at.end());
  double allowed = alike * std::max(mean, latest);
  if (is_coarse_) allowed = std::max(allowed, nearly_alike * mean);
  if (std::max(most - mean, mean - least) > allowed) return std::nullopt;
  return mean;
}

LeftOut Steadiness::by_mean(int tile, int num_tiles, int64_t num_messages) const {
  int count = most_left_out(num_tiles, num_channels);
  if (tile < fewest_tiles || count <= 0) return {};
  // The number of tiles in each of the last two thirds.
  int span = std::max(tile / 3 / num_channels * num_channels, num_channels);
  auto first = mean_us_.find(tile - 2 * span), middle = mean_us_.find(tile - span);
  if (first == mean_us_.end() || middle == mean_us_.end()) return {};
  double now_us = mean_us_.at(tile), tile_us = (now_us - first->second) / (2 * span);
  double before_us = (middle->second - first->second) / span;
  double differ_us = count * std::abs((now_us - middle->second) / span - before_us);
  bool is_close = differ_us < close_enough * (now_us + count * tile_us);
  if (!is_close && num_messages < most_exact * exact_messages_) return {};
  return {count, count * tile_us, safety * differ_us};
}

int Steadiness::most_left_out(int num_tiles, int period) const {
  int begun = last_begun_ + 1 + spare_tiles;
  return (num_tiles - begun) / period * period;
}

}  // namespace hccl::simulation
