// Collectives in programs that XLA compiled: a foreign function of XLA, which runs them by the
// table of c_entry.h, without the GIL. hccl_py/integrations/jax.py registers it.
//
// XLA's C ABI is declared here as far as it is used, because its header is in jaxlib alone, and no
// wheel of this package should need jaxlib to be built. Within a major version its structs grow
// only at their ends, and XLA asks a function for its version before it calls it.
#include <nanobind/nanobind.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>

#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "bindings/bindings.h"
#include "bindings/c_entry.h"

namespace nb = nanobind;

namespace hccl {

namespace {

// ---- XLA's ABI, version 0.3

constexpr int xla_major = 0, xla_minor = 3;
constexpr int metadata_extension = 1, token_type = 17, scalar_attribute = 3, aborted = 10;

struct XlaError;
struct XlaExtension {
  size_t struct_size;
  int type;
  XlaExtension* next;
};
struct XlaVersion {
  size_t struct_size;
  XlaExtension* extension;
  int major, minor;
};
struct XlaNewError {
  size_t struct_size;
  XlaExtension* extension;
  const char* message;
  int code;
};
struct XlaApi {
  size_t struct_size;
  XlaExtension* extension;
  XlaVersion version;
  const void* internal;
  XlaError* (*create_error)(XlaNewError* error);
};
struct XlaBuffer {
  size_t struct_size;
  XlaExtension* extension;
  int type;
  std::byte* data;
};
struct XlaBuffers {
  size_t struct_size;
  XlaExtension* extension;
  int64_t size;
  const int* kinds;
  XlaBuffer** buffers;
};
struct XlaName {
  const char* text;
  size_t size;
};
struct XlaScalar {
  int type;
  const void* value;
};
struct XlaAttributes {
  size_t struct_size;
  XlaExtension* extension;
  int64_t size;
  const int* kinds;
  XlaName** names;
  void** values;
};
struct XlaCall {
  size_t struct_size;
  XlaExtension* extension;
  const XlaApi* api;
  void* context;
  int stage;
  XlaBuffers arguments, results;
  XlaAttributes attributes;
};
struct XlaMetadata {
  size_t struct_size;
  XlaVersion version;
  uint32_t traits;
};
struct XlaMetadataExtension {
  XlaExtension base;
  XlaMetadata* metadata;
};

// ---- The calls of one place in a program

constexpr size_t page_bytes = 4096, large_bytes = 4 << 20;

struct Side {
  size_t num_blocks, block_bytes;  // no blocks: the call has no array on this side
};

class XlaCalls {
 public:
  XlaCalls(nb::object engine, double timeout_s, nb::object explain)
      : engine_(entry().open(engine.ptr())), timeout_s_(timeout_s), explain_(std::move(explain)) {}
  XlaCalls(const XlaCalls&) = delete;
  ~XlaCalls() {
    nb::gil_scoped_acquire acquire;  // the last to use it may be a thread of XLA
    {
      std::lock_guard guard(mutex);
      all.erase(number);
    }
    for (Part& part : parts_) entry().drop_plan(part.plan);
    entry().close(engine_);
    explain_.reset();
  }

  void add(nb::handle prepared, size_t num_read, size_t read_bytes, size_t num_written,
           size_t written_bytes) {
    CPlan* plan = entry().keep_plan(prepared.ptr());
    parts_.push_back({plan, {num_read, read_bytes}, {num_written, written_bytes}});
  }

  // Runs all calls at once. Returns the text of their error; empty: there is none.
  std::string run(const XlaBuffers& arguments, const XlaBuffers& results) const {
    Arrays read(arguments), written(results);
    std::vector<CCall*> calls;
    std::string error;
    for (const Part& part : parts_) {
      std::vector<CBlock> in = read.next(part.read), out = written.next(part.written);
      expect_large_pages(out);
      calls.push_back(entry().make_call());
      entry().set_collective(calls.back(), part.plan, in.data(), in.size(), out.data(), out.size());
    }
    if (read.is_short() || written.is_short()) {
      error = "XLA passed fewer arrays than the program was compiled for";
    } else {
      error = run(calls);
    }
    for (CCall* call : calls) entry().drop_call(call);
    return error;
  }

  static std::shared_ptr<XlaCalls> make(nb::object engine, double timeout_s, nb::object explain) {
    auto made = std::make_shared<XlaCalls>(std::move(engine), timeout_s, std::move(explain));
    std::lock_guard guard(mutex);
    made->number = ++last_number;
    all[made->number] = made;
    return made;
  }
  static std::shared_ptr<const XlaCalls> find(uint64_t its_number) {
    std::lock_guard guard(mutex);
    auto found = all.find(its_number);
    return found == all.end() ? nullptr : found->second.lock();
  }

  uint64_t number = 0;

 private:
  struct Part {
    CPlan* plan;
    Side read, written;
  };

  // Takes the arrays of a side in turn; tokens, which only order calls, are no arrays.
  class Arrays {
   public:
    explicit Arrays(const XlaBuffers& of) : of_(of) {}
    std::vector<CBlock> next(Side side) {
      if (side.num_blocks == 0) return {};
      while (at_ < of_.size && of_.buffers[at_]->type == token_type) ++at_;
      if (at_ >= of_.size) {
        is_short_ = true;
        return {};
      }
      std::byte* data = of_.buffers[at_++]->data;
      std::vector<CBlock> blocks;
      for (size_t i = 0; i < side.num_blocks; ++i) {
        blocks.push_back({data + i * side.block_bytes, side.block_bytes});
      }
      return blocks;
    }
    bool is_short() const { return is_short_; }

   private:
    const XlaBuffers& of_;
    int64_t at_ = 0;
    bool is_short_ = false;
  };

  static const CEntry& entry() { return c_entry(); }

  // XLA allocates results anew in each run. In small pages the faults of 64 MB take several times
  // as long as the collective. Numpy asks for large ones too.
  static void expect_large_pages(const std::vector<CBlock>& blocks) {
    if (blocks.empty() || blocks.size() * blocks[0].num_bytes < large_bytes) return;
    auto begin = reinterpret_cast<uintptr_t>(blocks[0].address);
    auto from = (begin + page_bytes - 1) / page_bytes * page_bytes;
    size_t num_bytes = begin + blocks.size() * blocks[0].num_bytes - from;
    madvise(reinterpret_cast<void*>(from), num_bytes / page_bytes * page_bytes, MADV_HUGEPAGE);
  }

  // JAX runs a program on its caller's thread if nothing else is under way.
  std::string run(const std::vector<CCall*>& calls) const {
    auto* how = gettid() == getpid() ? run_checking_signals : entry().run;
    try {
      CResult result = how(engine_, calls.data(), calls.size(), timeout_s_);
      return result == CResult::failed ? explained(calls) : "";
    } catch (nb::python_error& error) {
      nb::gil_scoped_acquire acquire;
      std::string text = error.what();
      if (error.matches(PyExc_KeyboardInterrupt)) PyErr_SetInterrupt();  // once XLA has returned
      return text;
    }
  }

  std::string explained(const std::vector<CCall*>& calls) const {
    nb::gil_scoped_acquire acquire;
    for (size_t i = 0; i < calls.size(); ++i) {
      if (entry().state(calls[i]) != CResult::failed) continue;
      try {
        nb::object failed = nb::steal(static_cast<PyObject*>(entry().failure(calls[i])));
        return nb::cast<std::string>(explain_(failed, i));
      } catch (nb::python_error& error) {
        return error.what();
      }
    }
    return "a collective failed";
  }

  static inline std::mutex mutex;  // of the two
  static inline uint64_t last_number = 0;
  static inline std::unordered_map<uint64_t, std::weak_ptr<const XlaCalls>> all;

  CEngine* engine_;
  double timeout_s_;
  nb::object explain_;
  std::vector<Part> parts_;
};

XlaError* error_of(const XlaCall* call, const std::string& text) {
  constexpr size_t its_size = offsetof(XlaNewError, code) + sizeof(int);
  XlaNewError error{its_size, nullptr, text.c_str(), aborted};
  return call->api->create_error(&error);
}

std::shared_ptr<const XlaCalls> calls_of(const XlaAttributes& attributes) {
  for (int64_t i = 0; i < attributes.size; ++i) {
    std::string_view name(attributes.names[i]->text, attributes.names[i]->size);
    if (name != "number" || attributes.kinds[i] != scalar_attribute) continue;
    const void* value = static_cast<const XlaScalar*>(attributes.values[i])->value;
    return XlaCalls::find(*static_cast<const uint64_t*>(value));
  }
  return nullptr;
}

XlaError* run_xla_call(XlaCall* call) {
  const XlaExtension* asked = call->extension;
  if (asked != nullptr && asked->type == metadata_extension) {
    // A newer minor version has what is declared here.
    const XlaVersion& its = call->api->version;
    int minor = its.major == xla_major ? its.minor : xla_minor;
    XlaMetadata& metadata = *reinterpret_cast<const XlaMetadataExtension*>(asked)->metadata;
    metadata.version = {sizeof(XlaVersion), nullptr, xla_major, minor};
    metadata.traits = 0;
    return nullptr;
  }
  try {
    std::shared_ptr<const XlaCalls> calls = calls_of(call->attributes);
    if (calls == nullptr) {
      return error_of(call,
                      "expected a program whose communicator lives and that this process compiled, "
                      "got another; keep the communicator, and compile the program here");
    }
    std::string error = calls->run(call->arguments, call->results);
    return error.empty() ? nullptr : error_of(call, error);
  } catch (const std::exception& error) {
    return error_of(call, error.what());
  }
}

}  // namespace

void bind_xla_calls(nb::module_& module) {
  nb::class_<XlaCalls>(module, "XlaCalls")
      .def(nb::new_(&XlaCalls::make), nb::arg("engine"), nb::arg("timeout_s"), nb::arg("explain"))
      .def("add", &XlaCalls::add, nb::arg("prepared"), nb::arg("num_read"), nb::arg("read_bytes"),
           nb::arg("num_written"), nb::arg("written_bytes"))
      .def_ro("number", &XlaCalls::number);
  module.def("xla_handler", []() -> nb::object {
    return nb::capsule(reinterpret_cast<const void*>(&run_xla_call));
  });
}

}  // namespace hccl
