#include "engine/connection/peer_state.h"

namespace hccl {

namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

// Longest duration of each state; zero: for ever.
constexpr Clock::duration limits[] = {
    {},
    seconds(45),        // cut: then it is unreachable, regardless of the calls' deadlines
    milliseconds(300),  // suspect: a lane may break before its control link says why
    milliseconds(100),  // ending: from the end of a process's connections to its end
    milliseconds(100),
    seconds(5),  // arriving: both ends are authenticated, only this control thread is behind
    {},
};

constexpr unsigned bit(PeerState::State state) { return 1u << state; }

constexpr unsigned open = bit(PeerState::connected) | bit(PeerState::cut),
                   dying = bit(PeerState::ending) | bit(PeerState::ending_broken);

constexpr struct {
  unsigned from;  // any of these states
  PeerState::Event event;
  PeerState::State to;
  PeerState::Action action;
} transitions[] = {
    {bit(PeerState::connected), PeerState::link_cut, PeerState::cut, PeerState::nothing},
    {bit(PeerState::cut), PeerState::link_restored, PeerState::connected, PeerState::nothing},
    {bit(PeerState::cut), PeerState::time, PeerState::cut, PeerState::report_paths},
    {open, PeerState::lane_broke, PeerState::suspect, PeerState::nothing},
    {bit(PeerState::suspect), PeerState::time, PeerState::connected, PeerState::report_paths},
    {open, PeerState::link_closed, PeerState::ending, PeerState::nothing},
    {bit(PeerState::suspect), PeerState::link_closed, PeerState::ending_broken, PeerState::nothing},
    {bit(PeerState::ending), PeerState::lane_broke, PeerState::ending_broken, PeerState::nothing},
    {dying, PeerState::time, PeerState::ended, PeerState::report_end},
    {open, PeerState::left, PeerState::ended, PeerState::nothing},
    {bit(PeerState::suspect), PeerState::left, PeerState::ended, PeerState::report_end},
    {open, PeerState::left_early, PeerState::arriving, PeerState::nothing},
    {bit(PeerState::suspect), PeerState::left_early, PeerState::arriving, PeerState::report_end},
    {bit(PeerState::arriving), PeerState::lanes_came, PeerState::ended, PeerState::end_lanes},
    {bit(PeerState::arriving), PeerState::time, PeerState::ended, PeerState::end_lanes},
    {open | bit(PeerState::suspect) | dying, PeerState::lost, PeerState::ended,
     PeerState::report_end},
};

}  // namespace

std::optional<PeerState::Action> PeerState::on(Event event, Deadline now) {
  for (const auto& row : transitions) {
    if ((row.from & bit(state_)) == 0 || row.event != event) continue;
    state_ = row.to;
    since_ = now;
    return row.action;
  }
  return {};
}

Deadline PeerState::deadline() const {
  Clock::duration limit = limits[state_];
  return limit == Clock::duration{} ? Deadline::max() : since_ + limit;
}

}  // namespace hccl
