// Stream for Python, to be subclassed there, as for TLS.
#include "bindings/bindings.h"

#include <nanobind/stl/shared_ptr.h>
#include <nanobind/trampoline.h>

#include <exception>
#include <string>
#include <utility>

namespace nb = nanobind;
namespace hccl {

namespace {

// What a signal handler raised while a stream's own code ran, and on which thread: that belongs to the
// call that this thread makes, not to the connection. Guarded by the GIL.
std::exception_ptr interruption;
unsigned long interrupted_thread = 0;

void keep_interruption(const nb::python_error& error) {
  if (interruption || error.matches(PyExc_OSError)) return;
  interruption = std::make_exception_ptr(error);
  interrupted_thread = PyThread_get_thread_ident();
}

// A Stream written in Python. The driver holds no GIL, so each call takes it.
class PyStream final : public Stream {
 public:
  NB_TRAMPOLINE(Stream, 5);

  int fd() const override {
    if (fd_ == unknown) {
      nb::gil_scoped_acquire gil;
      fd_ = nb::cast<int>(nb_trampoline.base().attr("fd")());
    }
    return fd_;
  }

  size_t send(std::span<const iovec> parts) override { return move("send", parts, PyBUF_READ); }
  size_t receive(std::span<const iovec> parts) override {
    return move("receive", parts, PyBUF_WRITE);
  }

  void close() override {
    nb::gil_scoped_acquire gil;
    fd_ = -1;
    try {
      nb_trampoline.base().attr("close")();
    } catch (const nb::python_error& error) {
      // Nobody can use it any more, closed or not.
      keep_interruption(error);
    }
  }

 private:
  static constexpr int unknown = -2;

  // Part by part until one was not moved whole.
  size_t move(const char* method, std::span<const iovec> parts, int access) {
    if (failed_) throw StreamError(why_failed_, failed_by_peer_);
    nb::gil_scoped_acquire gil;
    size_t moved = 0;
    try {
      nb::object move = nb_trampoline.base().attr(method);
      for (const iovec& part : parts) {
        nb::object view = nb::steal(PyMemoryView_FromMemory(
            static_cast<char*>(part.iov_base), static_cast<Py_ssize_t>(part.iov_len), access));
        size_t now = nb::cast<size_t>(move(view));
        view.attr("release")();
        moved += now;
        if (now < part.iov_len) break;
      }
    } catch (const nb::python_error& error) {
      // For good: it is unknown how many bytes the call that raised this had moved.
      failed_ = true;
      failed_by_peer_ = error.matches(PyExc_ConnectionError) || error.matches(PyExc_EOFError);
      why_failed_ = error.what();
      keep_interruption(error);
      // The bytes that came before count; the next call returns the rest.
      if (moved > 0 && access == PyBUF_WRITE) return moved;
      throw StreamError(why_failed_, failed_by_peer_);
    }
    return moved;
  }

  mutable int fd_ = unknown;
  bool failed_ = false;
  bool failed_by_peer_ = false;
  std::string why_failed_;
};

}  // namespace

void rethrow_stream_interruption() {
  if (!interruption || interrupted_thread != PyThread_get_thread_ident()) return;
  std::rethrow_exception(std::exchange(interruption, nullptr));
}

std::shared_ptr<Stream> stream_of(nb::handle connection) {
  if (nb::isinstance<nb::int_>(connection)) {
    return std::make_shared<SocketStream>(Descriptor(nb::cast<int>(connection)));
  }
  return nb::cast<std::shared_ptr<Stream>>(connection);
}

void bind_stream(nb::module_& module) {
  // Its methods are the subclass's own; base/stream.h says what they do. `send` and `receive` raise
  // ConnectionError when the other end is gone, at the end of the stream too.
  nb::class_<Stream, PyStream>(module, "Stream")
      .def(nb::init<>())
      .def("fd", [](Stream&) -> int { throw std::logic_error("a Stream without fd()"); });
}

}  // namespace hccl
