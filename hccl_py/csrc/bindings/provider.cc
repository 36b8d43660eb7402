// Lanes written in Python: how a provider such as transport/providers/zmq/provider.py plugs into the
// engine. `transport/providers/interface.py` says what such an object promises.
#include "bindings/bindings.h"

#include <poll.h>

#include <cstring>
#include <memory>

#include "verbs/underlying_lane.h"

namespace nb = nanobind;

namespace hccl {

namespace {

constexpr size_t python_slot_bytes = 131072;  // what transport/providers/interface.py promises lanes

// A lane whose work is done by a Python object.
//
// The only lane that takes the GIL, and only when its descriptor says that there is something to
// ask: every other turn of the driver costs one poll.
class PythonLane final : public QueuedLane {
 public:
  // With the GIL held. Throws nb::python_error if the object is no lane. `provider`: is closed after it.
  PythonLane(int peer, const nb::object& lane, size_t slot_bytes, Statistics& statistics,
             const nb::object& provider = {})
      : QueuedLane(peer, slot_bytes, statistics, statistics.provider),
        lane_(lane),
        provider_(provider),
        send_(lane.attr("send")),
        receive_(lane.attr("receive")),
        fd_(nb::cast<int>(lane.attr("fd")())) {}

  ~PythonLane() override {
    nb::object* objects[] = {&send_, &receive_, &lane_, &provider_};
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
  const std::byte* lend() override;
  bool receive(std::byte* destination) override;
  void release() override { has_message_ = false; }

 protected:
  bool push(const Header& header, const std::byte* payload) override;

 private:
  bool has_changed() const;
  bool call_send(const Header& header, const std::byte* payload);
  bool call_receive();
  [[noreturn]] void fail(const nb::python_error& error);

  nb::object lane_, provider_, send_, receive_;
  const int fd_;
  // What the object answered last; its descriptor becomes readable when that has changed.
  bool full_ = false;  // send: no room
  bool drained_ = false;  // receive: nothing there
  // The message that is lent. It is kept until the next one is received, because to release it
  // takes the GIL; `view_` refers to no object where there is none.
  Py_buffer view_{};
  Header header_;
  bool has_message_ = false;
};

// Whether an earlier answer of the object may be outdated.
bool PythonLane::has_changed() const {
  pollfd watched{fd_, POLLIN, 0};
  return poll(&watched, 1, 0) != 0;
}

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

}  // namespace

void add_python_lanes(Communicator& communicator, int peer, const std::vector<nb::object>& lanes,
                      int control_fd) {
  auto control = std::make_shared<SocketStream>(Descriptor(control_fd));
  std::vector<std::unique_ptr<Lane>> added;
  for (const nb::object& lane : lanes) {
    added.push_back(std::make_unique<PythonLane>(
        peer, lane, communicator.options().slot_bytes, communicator.statistics()));
  }
  communicator.add_peer(peer, std::move(added), {std::move(control)});
}

std::shared_ptr<UnderlyingLane> python_underlying_lane(const nb::object& provider,
                                                       const nb::object& lane) {
  struct Connection {
    Statistics statistics;
    PythonLane lane;
    Connection(const nb::object& its_provider, const nb::object& its_lane)
        : lane(0, its_lane, python_slot_bytes, statistics, its_provider) {}
  };
  auto connection = std::make_shared<Connection>(provider, lane);
  std::shared_ptr<Lane> shared(connection, &connection->lane);
  return std::make_shared<PlainUnderlyingLane>(std::move(shared), python_slot_bytes);
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
