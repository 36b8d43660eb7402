// Lanes over connected stream sockets: the provider for ranks of different nodes.
//
// Frames are a Header and its payload, in this machine's byte order (the hello refuses others).
// Sends go straight out of the caller's memory, receives land straight in the caller's buffer; only
// what a reduction reads is assembled in the lane's own slot first.
#pragma once

#include <vector>

#include "descriptor.h"
#include "lane.h"

namespace hccl {

class TcpLane final : public QueuedLane {
 public:
  // `socket`: a connected, authenticated, non-blocking stream socket.
  TcpLane(int peer, Descriptor socket, size_t slot_bytes, Statistics& statistics);

  int fd() const { return socket_.get(); }
  const Header* peek() override;
  const std::byte* lend() override;
  bool receive(std::byte* destination) override;
  void release() override;

 protected:
  bool push(const Header& header, const std::byte* payload, size_t& offset) override;

 private:
  size_t read_some(std::byte* destination, size_t size);
  [[noreturn]] void fail(const char* call, int error);

  const Descriptor socket_;
  // Bytes read ahead of need: a header, and the beginning of what follows it.
  std::byte ahead_[4096];
  size_t ahead_begin_ = 0;
  size_t ahead_end_ = 0;
  Header header_;
  bool has_header_ = false;
  size_t received_ = 0;  // payload bytes of the current message that are in place
  std::vector<std::byte> slot_;
};

}  // namespace hccl
