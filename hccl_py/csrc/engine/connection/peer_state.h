// The end of a peer in non-blocking steps: a state, its start, and a table of transitions. No I/O,
// and the time is an argument, so tests need neither sockets nor waits.
//
//   connected --link_cut--> cut --link_restored--> connected            of another node
//   connected --link_closed--> ending                                   of this node
//   connected, cut --lane_broke--> suspect --time--> connected          its link may say why
//   all of these --left, lost--> ended; --left_early--> arriving --lanes_came--> ended
#pragma once

#include <optional>

#include "engine/calls/request.h"

namespace hccl {

class PeerState {
 public:
  enum State : uint8_t {
    connected,
    cut,            // no control connection is up; one may replace it
    suspect,        // a lane broke, and the link may report why
    ending,         // its link closed on this host, and its process may be ending
    ending_broken,  // the same, and a lane broke
    arriving,       // it left, and connections that it has used are not here yet
    ended,
  };
  enum Event : uint8_t {
    lane_broke,
    link_cut,
    link_restored,
    link_closed,
    left_early,  // before all connections that it has used are here
    left,
    lost,
    lanes_came,
    time,  // the deadline has passed
  };
  // The owner's action after a transition.
  enum Action : uint8_t { nothing, report_paths, report_end, end_lanes };

  // Unset if the event changes nothing.
  std::optional<Action> on(Event event, Deadline now);

  State state() const { return state_; }
  Deadline since() const { return since_; }
  Deadline deadline() const;  // when on(time) is due
  bool has_ended() const { return state_ >= arriving; }
  // Data does not move until the cause of a broken lane is known.
  bool holds_traffic() const { return state_ == suspect || state_ == ending_broken; }
  bool is_unsettled() const { return state_ > cut && state_ < ended; }

 private:
  State state_ = connected;
  Deadline since_{};
};

}  // namespace hccl
