// A connection as a lane sees it: bytes in order, until it ends.
#pragma once

#include <sys/uio.h>

#include <cstddef>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>

#include "base/descriptor.h"

namespace hccl {

// How a connection ended: the other end closed it in order, as the kernel does for a process that
// dies; it was reset, by the other end or on the way; the other host answered nothing any more; or
// this end gave it up.
enum class StreamEnd { closed, reset, silent, given_up };

// The connection is of no use any more.
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

  // The socket, for epoll and for what the kernel knows about it; -1 once closed.
  virtual int fd() const = 0;
  // Returns how many bytes were taken, in order; 0 if it would block. Throws StreamError.
  virtual size_t send(std::span<const iovec> parts) = 0;
  // Receives what is there, filling the parts in order. Returns the bytes received, 0 if none are
  // there, nor in a buffer of the stream's own. Throws StreamError, also at the end of the stream.
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

// Whether the other end has closed or reset the connection, as far as the kernel knows by now.
bool has_hung_up(int fd);
// Whether the other end closed it in order, if it has_hung_up().
bool was_closed(int fd);
// Bytes handed to the kernel that the other end's kernel has not confirmed; 0 if it cannot say.
size_t unconfirmed_bytes(int fd);
// For how long the other end's kernel has answered nothing, although it was asked half a second ago
// or earlier: bytes were repeated, or a probe went out. 0: it answers, or had nothing to answer.
// The kernel of a stopped process answers.
double unanswered_s(int fd);

}  // namespace hccl
