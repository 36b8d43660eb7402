#include "simulation/programs.h"

#include <algorithm>

namespace hccl::simulation {

namespace {

constexpr double bytes_per_mib = 1 << 20;

// The index of a source, or -1.
int slot_among(const std::vector<int>& sources, int source) {
  auto found = std::lower_bound(sources.begin(), sources.end(), source);
  bool is_there = found != sources.end() && *found == source;
  return is_there ? static_cast<int>(found - sources.begin()) : -1;
}

bool receives(const SimulatedOp& op) {
  return op.kind == SimulatedOpKind::recv || op.kind == SimulatedOpKind::recv_reduce;
}

}  // namespace

Programs::Programs(Move move, std::vector<std::vector<int>> groups)
    : move_(move), groups_(std::move(groups)) {
  size_t num_ranks = 0;
  for (const auto& group : groups_) num_ranks += group.size();
  group_.resize(num_ranks);
  place_.resize(num_ranks);
  for (size_t group = 0; group < groups_.size(); ++group) {
    for (size_t place = 0; place < groups_[group].size(); ++place) {
      group_[groups_[group][place]] = static_cast<int>(group);
      place_[groups_[group][place]] = static_cast<int>(place);
    }
  }
}

void Programs::add(std::span<const int32_t> ops, std::span<const int32_t> peers) {
  RankProgram& program = programs_.emplace_back();
  program.peers.assign(peers.begin(), peers.end());
  program.ops.reserve(ops.size() / op_columns);
  int first = 0;
  for (size_t at = 0; at + op_columns <= ops.size(); at += op_columns) {
    const int32_t* row = &ops[at];
    program.ops.push_back({static_cast<SimulatedOpKind>(row[0]),
                           row[1],
                           row[2],
                           row[3],
                           first,
                           row[6],
                           {row[4] / bytes_per_mib, row[5] / bytes_per_mib}});
    int index = static_cast<int>(program.ops.size()) - 1;
    program.op_of.insert(program.op_of.end(), row[6], index);
    first += row[6];
    if (!receives(program.ops.back())) continue;
    program.sources.insert(program.sources.end(), peers.begin() + first - row[6],
                           peers.begin() + first);
  }
  auto& sources = program.sources;
  std::sort(sources.begin(), sources.end());
  sources.erase(std::unique(sources.begin(), sources.end()), sources.end());
  sources.shrink_to_fit();
}

std::optional<Unmatched> Programs::match() {
  for (size_t index = 0; index < programs_.size(); ++index) {
    RankProgram& program = programs_[index];
    int me = move_ == Move::none ? static_cast<int>(index) : groups_[0][index];
    program.slot_of.resize(program.peers.size());
    for (size_t message = 0; message < program.peers.size(); ++message) {
      int peer = program.peers[message], slot;
      if (receives(program.ops[program.op_of[message]])) {
        slot = slot_among(program.sources, peer);
      } else {
        int source = move_ == Move::none ? me : moved_back(me, group_[peer]);
        slot = slot_among(of(peer).sources, source);
      }
      if (slot < 0) return Unmatched{me, program.op_of[message], peer};
      program.slot_of[message] = slot;
    }
  }
  return std::nullopt;
}

}  // namespace hccl::simulation
