// The C++ of the lab for Python: ranks in virtual time, and the network of emulated nodes.
#include "bindings/lab.h"
#include "bindings/system_errors.h"

NB_MODULE(_lab, module) {
  module.doc() = "The C++ of hccl_py.lab.";
  nanobind::register_exception_translator(hccl::raise_system_error);
  hccl::bind_emulation(module);
  hccl::bind_simulation(module);
}
