// The transfer of a channel's messages. The ops of a plan call this; the channel keeps their order
// and the tiles.
//
//   StepsOverBoard  the first tile of a small call: a rank writes its messages of a step once
//   StepsOverLanes  all else
//
// Nothing blocks: after false or null, call again.
#pragma once

#include <span>

#include "engine/calls/plan.h"
#include "lanes/lane.h"

namespace hccl {

class Steps {
 public:
  virtual ~Steps() = default;
  // The payload is borrowed until StepsOverLanes::may_overwrite() says so.
  virtual bool send(std::span<const int> peers, const Header& header, const std::byte* payload) = 0;
  // Sends precede all other ops of a step.
  virtual bool end_sends() { return true; }
  // The next message of a peer, as Lane has them.
  virtual const Header* peek(int peer) = 0;
  virtual const std::byte* lend(int peer) = 0;
  virtual bool receive(int peer, std::byte* destination) = 0;
  virtual void release(int peer) = 0;
  // Whether the whole message has arrived, as a recv or a recv_reduce needs.
  virtual bool has_come(int peer, OpKind kind) = 0;
};

}  // namespace hccl
