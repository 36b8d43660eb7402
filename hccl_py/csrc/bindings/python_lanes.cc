// Python code called by the engine: Streams, for example for TLS, and the lanes of a provider
// (transport/providers/interface.py).
#include "bindings/bindings.h"

#include <poll.h>

#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/trampoline.h>

#include <cstring>
#include <exception>
#include <memory>
#include <string>
#include <utility>

#include "base/fork_copies.h"
#include "verbs/software/underlying_lane.h"

namespace nb = nanobind;

namespace hccl {

namespace {

// The exception of a signal handler within a stream's code on this thread: it belongs to the
// thread's call, not to the connection.
thread_local std::exception_ptr interruption;

void keep_interruption(const nb::python_error& error) {
  if (interruption || error.matches(PyExc_OSError) || error.matches(PyExc_EOFError)) return;
  interruption = std::make_exception_ptr(error);
}

// Its release() raises BufferError if Python still holds a part of the caller's memory.
nb::object memory_view(const void* address, size_t num_bytes, int access) {
  char* memory = static_cast<char*>(const_cast<void*>(address));
  auto size = static_cast<Py_ssize_t>(num_bytes);
  nb::object view = nb::steal(PyMemoryView_FromMemory(memory, size, access));
  if (!view.is_valid()) nb::raise_python_error();
  return view;
}

// A Stream written in Python. The driver holds no GIL, so each call takes it.
class PyStream final : public Stream {
 public:
  NB_TRAMPOLINE(Stream, 5);

  int fd() const override {
    if (fd_ == unknown) {
      nb::gil_scoped_acquire gil;
      fd_ = nb::cast<int>(nb_trampoline.base().attr("fd")());
      give_up_in_children(fd_);
    }
    return fd_;
  }

  size_t send(std::span<const iovec> parts) override { return move("send", parts, PyBUF_READ); }
  size_t receive(std::span<const iovec> parts) override {
    return move("receive", parts, PyBUF_WRITE);
  }

  void close() override {
    nb::gil_scoped_acquire gil;
    keep_in_children(std::exchange(fd_, -1));
    try {
      nb_trampoline.base().attr("close")();
    } catch (const nb::python_error& error) {
      // It is unusable, closed or not.
      keep_interruption(error);
    }
  }

 private:
  static constexpr int unknown = -2;

  // Part by part, until one is incomplete.
  size_t move(const char* method, std::span<const iovec> parts, int access) {
    if (failed_) throw StreamError(why_failed_, how_failed_);
    nb::gil_scoped_acquire gil;
    size_t moved = 0;
    try {
      nb::object move = nb_trampoline.base().attr(method);
      for (const iovec& part : parts) {
        nb::object view = memory_view(part.iov_base, part.iov_len, access);
        size_t now = nb::cast<size_t>(move(view));
        view.attr("release")();
        moved += now;
        if (now < part.iov_len) break;
      }
    } catch (const nb::python_error& error) {
      // Permanently: it is unknown how many bytes the failed call had moved.
      failed_ = true;
      if (error.matches(PyExc_EOFError)) how_failed_ = StreamEnd::closed;
      why_failed_ = error.what();
      keep_interruption(error);
      // The bytes received before count; the next call returns the rest.
      if (moved > 0 && access == PyBUF_WRITE) return moved;
      throw StreamError(why_failed_, how_failed_);
    }
    return moved;
  }

  mutable int fd_ = unknown;
  bool failed_ = false;
  StreamEnd how_failed_ = StreamEnd::reset;
  std::string why_failed_;
};

constexpr size_t python_slot_bytes = 131072;  // as transport/providers/interface.py promises

// A lane whose work is done by a Python object.
//
// The only lane that takes the GIL, and only when its descriptor is readable: every other turn of
// the driver costs one poll.
class PythonLane final : public QueuedLane {
 public:
  // With the GIL held. Throws nb::python_error if the object is not a lane. `provider`: closed
  // after it.
  PythonLane(int peer, const nb::object& lane, size_t slot_bytes, Statistics& statistics,
             const nb::object& provider = {})
      : QueuedLane(peer, slot_bytes, statistics, statistics.provider),
        lane_(lane),
        provider_(provider),
        send_(lane.attr("send")),
        receive_(lane.attr("receive")),
        tend_(nb::getattr(lane, "tend", nb::none())),
        trouble_(nb::getattr(lane, "trouble", nb::none())),
        end_(nb::getattr(lane, "peer_has_ended", nb::none())),
        owes_(nb::getattr(lane, "owes", nb::none())),
        fd_(nb::cast<int>(lane.attr("fd")())) {}

  ~PythonLane() override {
    nb::object* objects[] = {&send_, &receive_, &tend_, &trouble_,
                             &end_,  &owes_,    &lane_, &provider_};
    if (!nb::is_alive()) {
      // The interpreter has ended, so no Python code can close this.
      for (nb::object* object : objects) object->release();
      return;
    }
    nb::gil_scoped_acquire gil;
    if (view_.obj != nullptr) PyBuffer_Release(&view_);
    for (nb::object* object : {&lane_, &provider_}) {
      try {
        if (object->is_valid()) object->attr("close")();
      } catch (nb::python_error& error) {
        error.discard_as_unraisable("closing a lane or its provider");
      }
    }
    for (nb::object* object : objects) object->reset();
  }

  std::vector<int> descriptors() const override { return {fd_}; }
  const Header* peek() override;
  const std::byte* lend() override {
    return static_cast<const std::byte*>(view_.buf) + sizeof header_;
  }
  bool receive(std::byte* destination) override {
    std::memcpy(destination, lend(), header_.length);
    return true;
  }
  void release() override { has_message_ = false; }
  void tend(std::chrono::steady_clock::time_point) override { tell(tend_); }
  void peer_has_ended() override { tell(end_); }
  bool owes() const override;
  std::vector<PathTrouble> troubles(const std::vector<double>&) const override;

 protected:
  bool push(const Header& header, const std::byte* payload) override;

 private:
  // Whether an earlier answer of the object may be outdated.
  bool has_changed() const {
    pollfd watched{fd_, POLLIN, 0};
    return poll(&watched, 1, 0) != 0;
  }
  bool call_send(const Header& header, const std::byte* payload);
  bool call_receive();
  nb::object ask(const nb::object& method) const;
  void tell(const nb::object& method) const;
  [[noreturn]] void fail(const nb::python_error& error);

  nb::object lane_, provider_, send_, receive_;
  nb::object tend_, trouble_, end_, owes_;  // None: the lane has no such method
  const int fd_;
  // The object's last answers; its descriptor becomes readable when they change.
  bool full_ = false;     // send: no room
  bool drained_ = false;  // receive: nothing there
  // The lent message, kept until the next one is received, because releasing it takes the GIL;
  // `view_` has no object if there is none.
  Py_buffer view_{};
  Header header_;
  bool has_message_ = false;
};

bool PythonLane::push(const Header& header, const std::byte* payload) {
  if (full_ && !has_changed()) return false;
  full_ = !call_send(header, payload);
  if (full_) return false;
  device_.messages.add(1);
  device_.bytes.add(header.length);
  return true;
}

bool PythonLane::call_send(const Header& header, const std::byte* payload) {
  nb::gil_scoped_acquire gil;
  try {
    std::byte nothing{};
    nb::object view = memory_view(header.length ? payload : &nothing, header.length, PyBUF_READ);
    bool sent = nb::cast<bool>(send_(nb::bytes(&header, sizeof header), view));
    view.attr("release")();
    return sent;
  } catch (const nb::python_error& error) {
    fail(error);
  } catch (const nb::cast_error&) {
    throw LaneError(peer(), "send() of its provider returned no bool");
  }
}

const Header* PythonLane::peek() {
  if (has_message_) return &header_;
  if (drained_ && !has_changed()) return nullptr;
  has_message_ = call_receive();
  drained_ = !has_message_;
  return has_message_ ? &header_ : nullptr;
}

bool PythonLane::call_receive() {
  nb::gil_scoped_acquire gil;
  if (view_.obj != nullptr) PyBuffer_Release(&view_);
  try {
    nb::object message = receive_();
    if (message.is_none()) return false;
    if (PyObject_GetBuffer(message.ptr(), &view_, PyBUF_SIMPLE) != 0) nb::raise_python_error();
  } catch (const nb::python_error& error) {
    fail(error);
  }
  size_t size = static_cast<size_t>(view_.len);
  if (size >= sizeof header_) std::memcpy(&header_, view_.buf, sizeof header_);
  if (size < sizeof header_ || header_.length != size - sizeof header_) {
    throw LaneError(peer(), "a message of " + std::to_string(size) + " bytes that is not ours");
  }
  if (header_.length > slot_bytes_) throw LaneError(peer(), "a message longer than a slot");
  return true;
}

// Calls an optional method, with the GIL held. Never throws: a failed lane fails at its next
// message.
nb::object PythonLane::ask(const nb::object& method) const {
  if (method.is_none()) return {};
  try {
    return method();
  } catch (nb::python_error& error) {
    keep_interruption(error);
    error.discard_as_unraisable("a lane of a provider");
  }
  return {};
}

void PythonLane::tell(const nb::object& method) const {
  if (method.is_none()) return;
  nb::gil_scoped_acquire gil;
  ask(method);
}

bool PythonLane::owes() const {
  if (owes_.is_none()) return false;
  nb::gil_scoped_acquire gil;
  return ask(owes_).is(nb::bool_(true));
}

std::vector<PathTrouble> PythonLane::troubles(const std::vector<double>&) const {
  nb::gil_scoped_acquire gil;
  nb::object trouble = ask(trouble_);
  std::pair<double, std::string> known;
  if (!trouble.is_valid() || !nb::try_cast(trouble, known)) return {};
  return {{peer(), "a connection of its provider", false, known.first, std::move(known.second)}};
}

// With the GIL held.
void PythonLane::fail(const nb::python_error& error) {
  if (!error.matches(PyExc_Exception)) {  // KeyboardInterrupt and the like
    throw LaneInterrupted(std::make_exception_ptr(error));
  }
  nb::str name(error.type().attr("__name__")), what(error.value());
  throw LaneError(peer(), std::string(name.c_str()) + ": " + what.c_str());
}

}  // namespace

void rethrow_stream_interruption() {
  if (interruption) std::rethrow_exception(std::exchange(interruption, nullptr));
}

std::shared_ptr<Stream> stream_of(nb::handle connection) {
  if (nb::isinstance<nb::int_>(connection)) {
    return std::make_shared<SocketStream>(Descriptor(nb::cast<int>(connection)));
  }
  return nb::cast<std::shared_ptr<Stream>>(connection);
}

void add_python_lanes(Communicator& communicator, int peer, const std::vector<nb::object>& lanes,
                      int control_fd) {
  auto control = std::make_shared<SocketStream>(Descriptor(control_fd));
  std::vector<std::unique_ptr<Lane>> added;
  for (const nb::object& lane : lanes) {
    added.push_back(std::make_unique<PythonLane>(peer, lane, communicator.options().slot_bytes,
                                                 communicator.statistics()));
  }
  communicator.add_peer(peer, std::move(added), {std::move(control)});
}

std::shared_ptr<UnderlyingLane> python_underlying_lane(const nb::object& provider,
                                                       const nb::object& lane) {
  return std::make_shared<UnderlyingLane>(python_slot_bytes, [&](Statistics& statistics) {
    auto made = std::make_shared<PythonLane>(0, lane, python_slot_bytes, statistics, provider);
    // A queue pair has no control link and ends with its current connection.
    made->peer_has_ended();
    return made;
  });
}

void bind_python_lanes(nb::module_& module) {
  // Its methods are defined by the subclass, as described in base/stream.h. `send` and `receive`
  // raise OSError when the connection broke, and EOFError at the end of the stream.
  nb::class_<Stream, PyStream>(module, "Stream").def(nb::init<>()).def("fd", [](Stream&) -> int {
    throw std::logic_error("a Stream without fd()");
  });
  // A signal handler's exception passes through a lane unchanged.
  nb::register_exception_translator([](const std::exception_ptr& pointer, void*) {
    try {
      std::rethrow_exception(pointer);
    } catch (const LaneInterrupted& interrupted) {
      try {
        std::rethrow_exception(interrupted.cause);
      } catch (nb::python_error& error) {
        error.restore();
      }
    }
  });
}

}  // namespace hccl
