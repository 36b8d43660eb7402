// A lane's connection: bytes in order, until it ends.
#pragma once

#include <sys/uio.h>

#include <cstddef>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>

#include "base/descriptor.h"

namespace hccl {

// How a connection ended: the peer closed it regularly, as the kernel does for a process that dies;
// it was reset, by the peer or on the way; the peer's host stopped answering; or this end gave it
// up.
enum class StreamEnd { closed, reset, silent, given_up };

// The connection has failed.
class StreamError : public std::runtime_error {
 public:
  StreamError(const std::string& what, StreamEnd how) : std::runtime_error(what), end(how) {}
  const StreamEnd end;
};

class Stream {
 public:
  Stream() = default;
  virtual ~Stream() = default;
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  // The socket, for epoll and the kernel's information about it; -1 once closed.
  virtual int fd() const = 0;
  // Returns how many bytes were taken, in order; 0 if it would block. Throws StreamError.
  virtual size_t send(std::span<const iovec> parts) = 0;
  // Receives available bytes into the parts in order. Returns their number, 0 if there are none,
  // not even in the stream's buffer. Throws StreamError, also at the end of the stream.
  virtual size_t receive(std::span<const iovec> parts) = 0;
  virtual void close() = 0;
};

class SocketStream final : public Stream {
 public:
  // `socket`: a connected, authenticated, non-blocking stream socket.
  explicit SocketStream(Descriptor socket);
  ~SocketStream() override { close(); }

  int fd() const override { return socket_ ? socket_->get() : -1; }
  size_t send(std::span<const iovec> parts) override;
  size_t receive(std::span<const iovec> parts) override;
  void close() override;

 private:
  [[noreturn]] void fail(const char* call, int error);

  std::optional<Descriptor> socket_;
  StreamEnd end_ = StreamEnd::closed;
};

// Whether the peer has closed or reset the connection, as far as the kernel knows.
bool has_hung_up(int fd);
// Whether the peer closed it regularly, if it has_hung_up().
bool was_closed(int fd);
// Bytes handed to the kernel that the other end's kernel has not confirmed; 0 if it cannot say.
size_t unconfirmed_bytes(int fd);
// How long the peer's kernel has not answered repeated bytes or a probe sent at least half a second
// ago. 0: it answers, or had nothing to answer. The kernel of a stopped process answers.
double unanswered_s(int fd);

}  // namespace hccl
