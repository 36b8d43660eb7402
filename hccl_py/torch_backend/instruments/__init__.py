"""What torch's instruments see of hccl's groups; they see the calls of C++ groups by themselves.

profilers       torch.profiler and torch.autograd.profiler
modes           dispatch modes, such as CommDebugMode
debug_server    pages of torch.distributed.debug
capture_guard   a mode of ours: it rejects what a replay of hccl_py.capture() would leave out

None of it runs while no instrument does: torch keeps two flags that each call reads.
"""
