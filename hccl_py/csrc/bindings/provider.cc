#include "bindings/bindings.h"

#include "bindings/provider.h"

#include <poll.h>

#include <cstring>
#include <memory>

#include "engine/communicator.h"

namespace nb = nanobind;

namespace hccl {

PythonLane::PythonLane(int peer, const nb::object& lane, size_t slot_bytes, Statistics& statistics)
    : QueuedLane(peer, slot_bytes, statistics, statistics.provider),
      lane_(lane),
      send_(lane.attr("send")),
      receive_(lane.attr("receive")),
      fd_(nb::cast<int>(lane.attr("fd")())) {}

PythonLane::~PythonLane() {
  if (!nb::is_alive()) {
    // The interpreter has ended, so no Python code can close this.
    for (nb::object* object : {&lane_, &send_, &receive_}) object->release();
    return;
  }
  nb::gil_scoped_acquire gil;
  if (view_.obj != nullptr) PyBuffer_Release(&view_);
  try {
    lane_.attr("close")();
  } catch (nb::python_error& error) {
    error.discard_as_unraisable("closing a lane");
  }
  for (nb::object* object : {&lane_, &send_, &receive_}) object->reset();
}

// Whether an earlier answer of the object may be outdated.
bool PythonLane::has_changed() const {
  pollfd watched{fd_, POLLIN, 0};
  return poll(&watched, 1, 0) != 0;
}

bool PythonLane::push(const Header& header, const std::byte* payload, size_t&) {
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
    const void* address = header.length ? payload : &nothing;
    nb::object view = nb::steal(PyMemoryView_FromMemory(
        static_cast<char*>(const_cast<void*>(address)), header.length, PyBUF_READ));
    if (!view.is_valid()) nb::raise_python_error();
    bool sent = nb::cast<bool>(send_(nb::bytes(&header, sizeof header), view));
    // Raises BufferError if Python still holds a part of it: that memory is the caller's again.
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

const std::byte* PythonLane::lend() {
  return static_cast<const std::byte*>(view_.buf) + sizeof header_;
}

bool PythonLane::receive(std::byte* destination) {
  std::memcpy(destination, lend(), header_.length);
  return true;
}

// With the GIL held.
void PythonLane::fail(const nb::python_error& error) {
  if (!error.matches(PyExc_Exception)) {  // KeyboardInterrupt and the like
    throw LaneInterrupted(std::make_exception_ptr(error));
  }
  nb::str name(error.type().attr("__name__")), what(error.value());
  throw LaneError(peer(), std::string(name.c_str()) + ": " + what.c_str());
}

void add_python_lanes(Communicator& communicator, int peer, const std::vector<nb::object>& lanes,
                      int control_fd) {
  auto control = std::make_shared<SocketStream>(Descriptor(control_fd));
  std::vector<std::unique_ptr<Lane>> added;
  for (const nb::object& lane : lanes) {
    added.push_back(std::make_unique<PythonLane>(
        peer, lane, communicator.options().segment.slot_bytes, communicator.statistics()));
  }
  communicator.add_peer(peer, std::move(added), {std::move(control)});
}

void bind_provider() {
  nb::register_exception_translator(
      [](const std::exception_ptr& pointer, void*) {
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
