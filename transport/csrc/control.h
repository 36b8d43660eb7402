// The control connection between two ranks: goodbye, abort, and the silence of a dead peer.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "descriptor.h"
#include "failure.h"

namespace hccl {

// What a rank tells another besides data. Fixed size, so a reader needs no parser.
struct ControlMessage {
  enum Kind : uint32_t { goodbye = 1, abort = 2 };
  uint32_t magic = 0x4c434348;
  uint32_t kind = goodbye;
  uint64_t sequence = 0;  // goodbye: collectives finished
  uint32_t failure_kind = 0;
  int32_t rank = -1;
  uint64_t expected = 0;
  uint64_t received = 0;
  int32_t reporter = -1;
  uint32_t text_length = 0;
  char text[464] = {};
};
static_assert(sizeof(ControlMessage) == 512);

class ControlLink {
 public:
  enum class State { open, left, lost };

  // `socket`: a connected non-blocking stream socket.
  ControlLink(int peer, Descriptor socket) : peer_(peer), socket_(std::move(socket)) {}
  ControlLink(const ControlLink&) = delete;
  ControlLink& operator=(const ControlLink&) = delete;

  int fd() const { return socket_.get(); }
  int peer() const { return peer_; }
  State state() const { return state_; }
  uint64_t last_sequence() const { return last_sequence_; }

  // Best effort: a peer that does not read has bigger problems.
  void say_goodbye(uint64_t sequence);
  void report(const Failure& failure);
  // Reads what is there; updates state(). A failure that the peer reported is returned.
  std::optional<Failure> receive();

 private:
  void send(const ControlMessage& message);
  std::optional<Failure> handle(const ControlMessage& message);

  const int peer_;
  const Descriptor socket_;
  State state_ = State::open;
  uint64_t last_sequence_ = 0;
  std::vector<char> partial_;
};

}  // namespace hccl
