"""Benchmarks that need the checkout: each command starts its own ranks and prints a report.

    python -m benchmarks.peers --install-into ~/peers

peers/        Communicator beside MPIs, oneCCL and UCC, torch's groups beside gloo and DeepSpeed
overlap/      communication time of training steps: DDP over gloo, DDP over hccl, fast_ddp
serving/      tokens per second and CPU time per token of vLLM's engines on gloo and on hccl
startup/      how fast ranks connect, and the descriptors, threads and memory of each
prediction/   predictions of hccl_py.simulate beside measurements
uneven        synthesized plans beside the table's algorithms, on four hosts whose links differ
agents        hundreds of agents of hccl-launch on one machine: seconds, CPU time, memory
check_cost    the cost of comparing every call with the other ranks' calls
replay        a replayed graph beside its calls one by one and in a group()
window        puts and signals of a window beside one thread's copy
harness       shared by the commands: options, the record of a run and its report, exit codes

Nothing of the package imports them, and they are not installed.
"""
