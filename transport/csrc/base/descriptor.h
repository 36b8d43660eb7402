// An open file descriptor, closed with its owner.
#pragma once

#include <fcntl.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>
#include <utility>

namespace hccl {

class Descriptor {
 public:
  explicit Descriptor(int fd) : fd_(fd) {}
  Descriptor(Descriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Descriptor& operator=(Descriptor&&) = delete;
  ~Descriptor() {
    if (fd_ >= 0) ::close(fd_);
  }

  int get() const { return fd_; }

 private:
  int fd_;
};

// `fd` as `call` returned it. Throws std::system_error if that failed.
inline Descriptor opened(int fd, const char* call) {
  if (fd < 0) throw std::system_error(errno, std::generic_category(), call);
  return Descriptor(fd);
}

inline Descriptor new_event() { return opened(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK), "eventfd"); }

inline Descriptor duplicate(int fd) { return opened(fcntl(fd, F_DUPFD_CLOEXEC, 0), "dup"); }

inline void signal_event(const Descriptor& event) {
  uint64_t one = 1;
  // Fails only when the counter is full, and then it is readable anyway.
  [[maybe_unused]] ssize_t written = ::write(event.get(), &one, sizeof one);
}

inline void clear_event(const Descriptor& event) {
  uint64_t count;
  [[maybe_unused]] ssize_t got = ::read(event.get(), &count, sizeof count);
}

}  // namespace hccl
