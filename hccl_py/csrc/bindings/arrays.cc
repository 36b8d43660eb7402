#include "bindings/arrays.h"

#include <cinttypes>
#include <cstdio>

namespace nb = nanobind;

namespace hccl {

namespace {

// PyArrayObject_fields of numpy/ndarraytypes.h, which numpy's own macros read inside of every
// extension module: it stays as it is for as long as modules need not be compiled again.
struct NumpyArray {
  PyObject_HEAD
  char* data;
  int ndim;
  intptr_t* shape;
  intptr_t* strides;
  PyObject* base;
  PyObject* dtype;
  int flags;
};
constexpr int numpy_c_contiguous = 0x1;
constexpr int numpy_writeable = 0x400;
constexpr int numpy_warn_on_write = 1 << 31;

// DLPackExchangeAPI of dlpack.h, as far as it is read here.
struct DLPackExchange {
  uint32_t major, minor;
  DLPackExchange* previous;
  void* allocate;
  void* export_managed;
  void* import_managed;
  int (*export_tensor)(void* object, DLTensor* out);
};
constexpr uint32_t known_major = 1;
constexpr int32_t host_device = 1;
constexpr uint8_t complex_code = 5;

bool read_numpy(PyObject* object, ArrayView& view) {
  const auto& array = *reinterpret_cast<NumpyArray*>(object);
  constexpr int wanted = numpy_c_contiguous | numpy_writeable;
  if ((array.flags & (wanted | numpy_warn_on_write)) != wanted) return false;
  view.address = reinterpret_cast<std::byte*>(array.data);
  view.count = 1;
  for (int i = 0; i < array.ndim; ++i) view.count *= static_cast<size_t>(array.shape[i]);
  view.element = reinterpret_cast<uintptr_t>(array.dtype);
  return true;
}

// Whether the method without arguments, interned, returns True.
bool says(PyObject* object, const nb::object& method) {
  PyObject* answer = PyObject_CallMethodNoArgs(object, method.ptr());
  if (answer == nullptr) PyErr_Clear();
  Py_XDECREF(answer);
  return answer != Py_False;
}

bool is_laid_out_as_known(const nb::object& numpy) {
  nb::object array = numpy.attr("zeros")(nb::make_tuple(2, 3), "int16");
  auto matches = [](const nb::object& one, int ndim, int flags) {
    const auto& read = *reinterpret_cast<NumpyArray*>(one.ptr());
    constexpr int both = numpy_c_contiguous | numpy_writeable;
    return nb::int_(reinterpret_cast<uintptr_t>(read.data))
               .equal(one.attr("ctypes").attr("data")) &&
           read.ndim == ndim && read.shape[0] == nb::cast<intptr_t>(one.attr("shape")[0]) &&
           read.shape[1] == nb::cast<intptr_t>(one.attr("shape")[1]) &&
           read.dtype == one.attr("dtype").ptr() && (read.flags & both) == flags;
  };
  nb::object transposed = array.attr("T").attr("view")();
  transposed.attr("setflags")(nb::arg("write") = false);
  return matches(array, 2, numpy_c_contiguous | numpy_writeable) && matches(transposed, 2, 0);
}

// Where the first of the process's mappings begins: Linux places later ones above it.
uintptr_t lowest_address() {
  uintptr_t lowest = 1;
  if (FILE* maps = std::fopen("/proc/self/maps", "re")) {
    if (std::fscanf(maps, "%" SCNxPTR, &lowest) != 1) lowest = 1;
    std::fclose(maps);
  }
  return lowest;
}

}  // namespace

bool is_contiguous(const DLTensor& tensor) {
  if (tensor.strides == nullptr) return true;
  int64_t expected = 1;
  for (int32_t i = tensor.ndim; i-- > 0;) {
    if (tensor.shape[i] == 0) return true;
    if (tensor.shape[i] > 1 && tensor.strides[i] != expected) return false;
    expected *= tensor.shape[i];
  }
  return true;
}

ArrayReader::ArrayReader()
    : ndarray_(nb::none()),
      is_neg_(nb::steal(PyUnicode_InternFromString("is_neg"))),
      is_conj_(nb::steal(PyUnicode_InternFromString("is_conj"))),
      lowest_(lowest_address()) {
  nb::module_ numpy = nb::module_::import_("numpy");
  if (is_laid_out_as_known(numpy)) ndarray_ = numpy.attr("ndarray");
}

void ArrayReader::learn(PyTypeObject* type) {
  for (const Type& known : types_) {
    if (known.type == type) return;
  }
  nb::object object = nb::borrow(reinterpret_cast<PyObject*>(type));
  Export export_tensor = nullptr;
  if (!object.is(ndarray_)) {
    // Not what a subclass inherits. Of the interface's other users none is known to be writable.
    nb::object own = object.attr("__dict__").attr("get")("__dlpack_c_exchange_api__");
    if (own.is_none() || !nb::hasattr(object, "is_neg") || !nb::hasattr(object, "is_conj")) return;
    nb::object capsule = object.attr("__dlpack_c_exchange_api__");
    void* found = PyCapsule_GetPointer(capsule.ptr(), "dlpack_exchange_api");
    if (found == nullptr) throw nb::python_error();
    const auto& exchange = *static_cast<DLPackExchange*>(found);
    if (exchange.major != known_major || exchange.export_tensor == nullptr) return;
    export_tensor = exchange.export_tensor;
    kept_.push_back(std::move(capsule));
  }
  types_.push_back({type, export_tensor});
  kept_.push_back(std::move(object));
}

bool ArrayReader::read(PyObject* object, ArrayView& view) const {
  const Type* found = nullptr;
  for (const Type& known : types_) {
    if (known.type == Py_TYPE(object)) found = &known;
  }
  if (found == nullptr) return false;
  if (found->export_tensor == nullptr) return read_numpy(object, view);
  DLTensor tensor;
  if (found->export_tensor(object, &tensor) != 0) {
    PyErr_Clear();
    return false;
  }
  if (tensor.device.device_type != host_device || !is_contiguous(tensor)) return false;
  view.count = 1;
  for (int32_t i = 0; i < tensor.ndim; ++i) view.count *= static_cast<size_t>(tensor.shape[i]);
  view.address = static_cast<std::byte*>(tensor.data) + tensor.byte_offset;
  // Tensors of functorch and the like have no memory, nor have those whose storage was freed: what
  // they call their address is an offset.
  if (view.count > 0 && reinterpret_cast<uintptr_t>(view.address) < lowest_) return false;
  view.element = uintptr_t{tensor.dtype.code} << 24 | uintptr_t{tensor.dtype.bits} << 16 |
                 uintptr_t{tensor.dtype.lanes};
  // A tensor may stand for the conjugate or the negative of what is in its memory.
  return !says(object, is_neg_) && (tensor.dtype.code != complex_code || !says(object, is_conj_));
}

}  // namespace hccl
