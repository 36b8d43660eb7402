// The Python face of the engine, one-to-one with the headers. No logic lives here.
#include <nanobind/nanobind.h>

NB_MODULE(_core, module) { module.doc() = "The C++ data path of hccl-py."; }
