// Registered memory in Python: the arena of the process, and pieces of it that live as long as what
// is made of them.
#include "bindings/bindings.h"

#include <nanobind/ndarray.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>

#include "base/arena.h"

namespace nb = nanobind;

namespace hccl {

namespace {

// Allocated memory of the arena, released with this object.
class Region {
 public:
  Region(std::shared_ptr<Arena> arena, size_t num_bytes)
      : arena_(std::move(arena)),
        address_(arena_->allocate(num_bytes)),
        num_bytes_(num_bytes) {}
  Region(const Region&) = delete;
  Region& operator=(const Region&) = delete;
  ~Region() {
    if (shown_at_ != nullptr) arena_->withdraw(shown_at_);
    arena_->release(address_);
  }

  std::byte* address() const { return address_; }
  size_t num_bytes() const { return num_bytes_; }
  bool is_retired() const { return arena_->is_retired(address_); }
  void show_at(std::byte* address) {
    arena_->show_at(address, address_, num_bytes_);
    shown_at_ = address;
  }

 private:
  const std::shared_ptr<Arena> arena_;
  std::byte* const address_;
  const size_t num_bytes_;
  std::byte* shown_at_ = nullptr;
};

// The array keeps the region alive.
nb::ndarray<nb::numpy, uint8_t, nb::ndim<1>> as_array(nb::handle_t<Region> self) {
  const Region& region = nb::cast<const Region&>(self);
  return {region.address(), {region.num_bytes()}, nb::borrow(self)};
}

}  // namespace

void bind_arena(nb::module_& module) {
  nb::class_<Arena>(module, "Arena")
      .def_static("create", &Arena::create)
      .def("fd", &Arena::fd)
      .def("num_bytes", &Arena::num_bytes)
      .def("num_allocated", &Arena::num_allocated)
      .def("unavailable", &Arena::unavailable)
      .def("holds", [](const Arena& arena, uint64_t address, size_t num_bytes) {
        return arena.offset_of(pointer(address), num_bytes).has_value();
      });
  nb::class_<Region>(module, "Region")
      .def(nb::init<std::shared_ptr<Arena>, size_t>(), Released())
      .def("address", [](const Region& region) {
        return reinterpret_cast<uint64_t>(region.address());
      })
      .def("array", &as_array)
      .def("is_retired", &Region::is_retired)
      .def("show_at", [](Region& region, uint64_t address) { region.show_at(pointer(address)); },
           Released());
}

}  // namespace hccl
