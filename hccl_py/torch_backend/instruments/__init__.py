"""Shows the calls of hccl's groups to torch's instruments, which see only C++ groups' calls.

profilers       torch.profiler and torch.autograd.profiler
modes           dispatch modes, such as CommDebugMode
debug_server    pages of torch.distributed.debug
capture_guard   our mode: it rejects operations that a replay of hccl_py.capture() would omit

It costs nothing while no instrument runs: each call reads two flags of torch.
"""
