// An open file descriptor, closed with its owner, and objects behind descriptors.
#pragma once

#include <fcntl.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cerrno>
#include <string>
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

[[noreturn]] inline void throw_errno(const std::string& what, int error = errno) {
  throw std::system_error(error, std::generic_category(), what);
}

// Wraps the `fd` that `call` returned. Throws std::system_error if it failed.
inline Descriptor opened(int fd, const char* call) {
  if (fd < 0) throw_errno(call);
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

constexpr size_t round_up(size_t size, size_t unit) { return (size + unit - 1) / unit * unit; }

// For memory shared with other processes, without a name in the file system, so a crash leaves
// nothing behind. Without seals a peer could shrink its memory and kill this process with SIGBUS.
inline constexpr int seals_of_size = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;

// Names the limit of shared memory behind an error; empty for any other error.
inline std::string why_too_large(int error) {
  rlimit limit;
  if (error != EFBIG || getrlimit(RLIMIT_FSIZE, &limit) != 0) return {};
  return " (this process may make files of up to " + std::to_string(limit.rlim_cur) +
         " bytes: raise ulimit -f)";
}

// Throws std::system_error.
inline Descriptor sealed_memory(size_t num_bytes, const char* name) {
  Descriptor memory(memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (memory.get() < 0 || ftruncate(memory.get(), static_cast<off_t>(num_bytes)) != 0 ||
      fcntl(memory.get(), F_ADD_SEALS, seals_of_size) != 0) {
    int error = errno;
    std::string what = "shared memory " + std::string(name) + " of " + std::to_string(num_bytes);
    throw_errno(what + " bytes" + why_too_large(error), error);
  }
  return memory;
}

inline bool is_sealed(const Descriptor& memory) {
  int seals = fcntl(memory.get(), F_GET_SEALS);
  return seals >= 0 && (seals & seals_of_size) == seals_of_size;
}

}  // namespace hccl
