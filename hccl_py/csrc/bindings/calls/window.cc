// Windows in Python. put() reads its arguments here, because a small put is shorter than a Python
// frame; hccl_py/calls/window.py takes all others, and says what is wrong with them.
#include "engine/window.h"

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/tuple.h>

#include <memory>
#include <optional>
#include <utility>

#include "bindings/calls/arrays.h"
#include "bindings/calls/requests.h"

namespace nb = nanobind;

namespace hccl {

namespace {

// A window and what it needs as long as it is open.
struct PythonWindow {
  std::shared_ptr<Window> window;
  int world_size;
  nb::object reader;  // an ArrayReader
  nb::object kind;    // the ElementType
  size_t item_bytes;
  nb::object buffer;

  PythonWindow(const Communicator& engine, std::span<std::byte> memory, nb::object its_reader,
               nb::object its_kind, size_t its_item_bytes, nb::object its_buffer)
      : window(engine.make_window(memory)),
        world_size(engine.options().world_size),
        reader(std::move(its_reader)),
        kind(std::move(its_kind)),
        item_bytes(its_item_bytes),
        buffer(std::move(its_buffer)) {}
  PythonWindow(PythonWindow&&) = default;
  ~PythonWindow() {
    if (window) withdraw(false);
  }
  // A driver that writes into the window, and which this waits for, may need Python's lock.
  void withdraw(bool agreed) const {
    nb::gil_scoped_release release;
    window->withdraw(agreed);
  }
  bool has(int64_t peer) const { return peer >= 0 && peer < world_size; }
};

// False for anything but a plain int, which Python converts or rejects.
bool read_int(nb::handle object, int64_t& value) {
  if (!PyLong_CheckExact(object.ptr())) return false;
  value = PyLong_AsLongLong(object.ptr());
  if (value != -1 || !PyErr_Occurred()) return true;
  PyErr_Clear();
  return false;
}

bool put_bytes(const PythonWindow& self, uint64_t address, size_t num_bytes, int peer,
               uint64_t offset) {
  if (num_bytes <= little_bytes) return self.window->put(peer, offset, pointer(address), num_bytes);
  nb::gil_scoped_release release;
  return self.window->put(peer, offset, pointer(address), num_bytes);
}

bool put(const PythonWindow& self, nb::handle data, nb::handle peer, nb::handle offset) {
  ArrayView view;
  int64_t to, first;
  if (!read_int(peer, to) || !self.has(to) || !read_int(offset, first) || first < 0) return false;
  if (!nb::inst_ptr<ArrayReader>(self.reader)->read(data.ptr(), view)) return false;
  if (view.elements == nullptr || !view.elements->kind.is(self.kind)) return false;
  uint64_t at;
  if (__builtin_mul_overflow(static_cast<uint64_t>(first), self.item_bytes, &at)) return false;
  return put_bytes(self, reinterpret_cast<uint64_t>(view.address), view.count * self.item_bytes,
                   static_cast<int>(to), at);
}

template <bool (*Act)(Window&, int, Signal)>
bool act(const PythonWindow& self, nb::handle peer, bool closing) {
  int64_t rank;
  if (!read_int(peer, rank) || !self.has(rank)) return false;
  return Act(*self.window, static_cast<int>(rank), closing ? Signal::closing : Signal::user);
}

bool signal(Window& window, int peer, Signal which) { return window.signal(peer, which); }
bool take_signal(Window& window, int peer, Signal which) { return window.take_signal(peer, which); }

// The memory of a mapped peer, which stays mapped as long as the array.
nb::ndarray<nb::numpy, uint8_t, nb::ndim<1>> memory_of(const PythonWindow& self, int peer) {
  std::span<std::byte> memory = self.window->memory_of(peer);
  auto* kept = new std::shared_ptr<ArenaWindow>(self.window->mapping_of(peer));
  nb::capsule owner(
      kept, [](void* held) noexcept { delete static_cast<std::shared_ptr<ArenaWindow>*>(held); });
  return {memory.data(), {memory.size()}, owner};
}

// -1: peers cannot map it.
int64_t plain(std::optional<uint64_t> offset) {
  return offset ? static_cast<int64_t>(*offset) : -1;
}

PythonWindow make_window(const Communicator& engine, uint64_t address, size_t num_bytes,
                         nb::object reader, nb::object kind, size_t item_bytes, nb::object buffer) {
  std::span<std::byte> memory(pointer(address), num_bytes);
  return {engine, memory, std::move(reader), std::move(kind), item_bytes, std::move(buffer)};
}

// `offset`: of a put in bytes; else 1 for the signal of a closing window.
UnsubmittedCall make_window_call(Communicator& engine, const PythonWindow& window, uint64_t id,
                                 int kind, int peer, uint64_t offset,
                                 std::tuple<uint64_t, size_t> memory, double timeout_s,
                                 nb::object buffers) {
  RequestPtr request = take_request(engine);
  request->kind = static_cast<RequestKind>(kind);
  begin(*request, timeout_s);
  request->peer = peer;
  request->tag = id;
  request->window = window.window;
  request->offset = offset;
  request->address = pointer(std::get<0>(memory));
  request->num_bytes = std::get<1>(memory);
  return {std::move(request), std::move(buffers)};
}

}  // namespace

void bind_window(nb::module_& module, nb::class_<Communicator>& communicator) {
  nb::class_<PythonWindow>(module, "Window")
      .def("offsets",
           [](const PythonWindow& w) {
             return std::tuple(plain(w.window->memory_offset()), plain(w.window->signals_offset()));
           })
      .def("maps", [](const PythonWindow& w, int peer) { return w.window->maps(peer); })
      .def("memory_of", &memory_of)
      // Of mapped peers; false without effect for others, and for arguments that Python has to see.
      .def("put", &put, nb::arg().none(), nb::arg().none(), nb::arg().none())
      .def("put_bytes", &put_bytes)
      .def("signal", &act<&signal>, nb::arg("peer").none(), nb::arg("closing") = false)
      .def("take_signal", &act<&take_signal>, nb::arg("peer").none(), nb::arg("closing") = false)
      .def("withdraw", &PythonWindow::withdraw);
  communicator.def("make_window", &make_window)
      .def("map_window",
           [](const Communicator& c, const PythonWindow& w, int peer, uint64_t num_bytes,
              uint64_t memory_at, uint64_t signals_at) {
             return c.map_window(*w.window, peer, num_bytes, memory_at, signals_at);
           })
      .def(
          "open_window",
          [](Communicator& c, const PythonWindow& w, uint64_t id, bool is_passive) {
            c.open_window(w.window, id, is_passive);
          },
          Released())
      .def("make_window_call", &make_window_call)
      .def("end_windows", &Communicator::end_windows);
}

}  // namespace hccl
