// The C++ of the lab for Python: ranks in virtual time, and the network of emulated nodes.
#include "bindings/lab.h"

NB_MODULE(_lab, module) {
  module.doc() = "The C++ of hccl_py.lab.";
  nanobind::module_::import_("hccl_py.transport._core");  // translates errors of the system
  hccl::bind_emulation(module);
  hccl::bind_simulation(module);
}
