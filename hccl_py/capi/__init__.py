"""The C API: `include/hccl/hccl.h`, and the libraries that `hccl-config --libs` links.

csrc/     libhccl, in C++; libSynapse, a stand-in for the runtime of Gaudi; the headers
entry     what libhccl calls of Python: to connect, plan, explain and close
config    the command hccl-config

A call whose plan exists goes from C to the engine without Python.
"""
