#include "bindings/calls/arrays.h"

#include <array>
#include <stdexcept>

namespace nb = nanobind;

namespace hccl {

namespace {

// PyArrayObject_fields of numpy/ndarraytypes.h, which numpy's macros read in every extension
// module, so its layout is stable.
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
  view.id = reinterpret_cast<uintptr_t>(array.dtype);
  return true;
}

// Whether the method without arguments, interned, returns True.
bool says(PyObject* object, const nb::object& method) {
  PyObject* answer = PyObject_VectorcallMethod(method.ptr(), &object, 1, nullptr);
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

uintptr_t word(uintptr_t object, size_t index) {
  return reinterpret_cast<const uintptr_t*>(object)[index];
}

// The first word that has the wanted value in each of two objects.
size_t find_word(const std::array<uintptr_t, 2>& objects, const std::array<uintptr_t, 2>& wanted) {
  constexpr size_t most_words = 8;  // no object that is read is shorter
  for (size_t i = 0; i < most_words; ++i) {
    if (word(objects[0], i) == wanted[0] && word(objects[1], i) == wanted[1]) return i;
  }
  throw std::out_of_range("no such word");
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
      is_conj_(nb::steal(PyUnicode_InternFromString("is_conj"))) {
  nb::module_ numpy = nb::module_::import_("numpy");
  if (is_laid_out_as_known(numpy)) ndarray_ = numpy.attr("ndarray");
}

std::optional<TorchStorage> TorchStorage::find() {
  std::array<uintptr_t, 2> tensors, storages, begins, sizes{4099, 70001};
  std::array<nb::object, 2> kept;
  try {
    for (size_t i = 0; i < kept.size(); ++i) {
      nb::object memory = nb::module_::import_("numpy").attr("zeros")(sizes[i], "uint8");
      kept[i] = nb::module_::import_("torch").attr("from_numpy")(memory);
      tensors[i] = nb::cast<uintptr_t>(kept[i].attr("_cdata"));
      storages[i] = nb::cast<uintptr_t>(kept[i].attr("untyped_storage")().attr("_cdata"));
      begins[i] = nb::cast<uintptr_t>(memory.attr("ctypes").attr("data"));
      if (word(reinterpret_cast<uintptr_t>(kept[i].ptr()), tensor_) != tensors[i]) return {};
    }
    size_t storage = find_word(tensors, storages);
    return TorchStorage(storage, find_word(storages, begins), find_word(storages, sizes));
  } catch (const std::exception&) {  // also Python's, for example if a program has changed torch
    return {};
  }
}

bool TorchStorage::holds(PyObject* tensor, const std::byte* address, size_t num_bytes) const {
  uintptr_t storage = word(word(reinterpret_cast<uintptr_t>(tensor), tensor_), storage_);
  uintptr_t begin = storage == 0 ? 0 : word(storage, begin_);
  if (begin == 0) return false;
  size_t offset = reinterpret_cast<uintptr_t>(address) - begin, size = word(storage, size_);
  return offset <= size && num_bytes <= size - offset;
}

void ArrayReader::learn(nb::handle object, nb::object kind) {
  learn_type(Py_TYPE(object.ptr()));
  ArrayView view;
  if (!read(object.ptr(), view) || view.elements != nullptr) return;
  nb::object dtype = object.attr("dtype");
  // numpy makes a new dtype object for each array unless it is a singleton.
  bool is_one_object = !nb::hasattr(dtype, "isbuiltin") || nb::cast<int>(dtype.attr("isbuiltin"));
  auto item_bytes = nb::cast<size_t>(kind.attr("item_bytes"));
  size_t count = num_elements_.load(std::memory_order_relaxed);
  if (!is_one_object || count == most_elements) return;
  elements_[count] = {view.id, std::move(kind), item_bytes, std::move(dtype)};
  num_elements_.store(count + 1, std::memory_order_release);
}

const Elements* ArrayReader::find_elements(uintptr_t id) const {
  for (size_t i = 0, n = num_elements_.load(std::memory_order_acquire); i < n; ++i) {
    if (elements_[i].id == id) return &elements_[i];
  }
  return nullptr;
}

const ArrayReader::Type* ArrayReader::find_type(const PyTypeObject* type) const {
  for (size_t i = 0, n = num_types_.load(std::memory_order_acquire); i < n; ++i) {
    if (types_[i].type == type) return &types_[i];
  }
  return nullptr;
}

void ArrayReader::learn_type(PyTypeObject* type) {
  if (find_type(type) != nullptr) return;
  nb::object object = nb::borrow(reinterpret_cast<PyObject*>(type));
  Export export_tensor = nullptr;
  if (!object.is(ndarray_)) {
    // Not an inherited one. No other exporter is known to be writable.
    nb::object own = object.attr("__dict__").attr("get")("__dlpack_c_exchange_api__");
    if (own.is_none() || !nb::hasattr(object, "_cdata")) return;
    std::optional<TorchStorage> storage = storage_ ? storage_ : TorchStorage::find();
    if (!storage) return;
    if (!storage_) storage_ = storage;
    nb::object capsule = object.attr("__dlpack_c_exchange_api__");
    void* found = PyCapsule_GetPointer(capsule.ptr(), "dlpack_exchange_api");
    if (found == nullptr) throw nb::python_error();
    const auto& exchange = *static_cast<DLPackExchange*>(found);
    if (exchange.major != known_major || exchange.export_tensor == nullptr) return;
    export_tensor = exchange.export_tensor;
    kept_.push_back(std::move(capsule));
  }
  size_t count = num_types_.load(std::memory_order_relaxed);
  if (count == most_types) return;
  types_[count] = {type, export_tensor};
  kept_.push_back(std::move(object));
  num_types_.store(count + 1, std::memory_order_release);
}

bool ArrayReader::read(PyObject* object, ArrayView& view) const {
  const Type* found = find_type(Py_TYPE(object));
  if (found == nullptr) return false;
  if (found->export_tensor == nullptr) {
    if (!read_numpy(object, view)) return false;
    view.elements = find_elements(view.id);
    return true;
  }
  DLTensor tensor;
  if (found->export_tensor(object, &tensor) != 0) {
    PyErr_Clear();
    return false;
  }
  if (tensor.device.device_type != host_device || !is_contiguous(tensor)) return false;
  view.count = 1;
  for (int32_t i = 0; i < tensor.ndim; ++i) view.count *= static_cast<size_t>(tensor.shape[i]);
  view.address = static_cast<std::byte*>(tensor.data) + tensor.byte_offset;
  size_t num_bytes = view.count * ((tensor.dtype.bits * tensor.dtype.lanes + 7) / 8);
  if (num_bytes > 0 && !storage_->holds(object, view.address, num_bytes)) return false;
  view.id = uintptr_t{tensor.dtype.code} << 24 | uintptr_t{tensor.dtype.bits} << 16 |
            uintptr_t{tensor.dtype.lanes};
  view.elements = find_elements(view.id);
  // A tensor may be the conjugate or the negative of its memory.
  return !says(object, is_neg_) && (tensor.dtype.code != complex_code || !says(object, is_conj_));
}

}  // namespace hccl
