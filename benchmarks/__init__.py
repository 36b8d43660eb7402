"""Benchmarks that need the checkout: each command starts its own ranks, and says what it found.

    python -m benchmarks.peers --install-into ~/peers

peers/        Communicator beside MPICH, Open MPI and UCC, torch's groups beside gloo, fresh starts
overlap/      training steps: what DDP over gloo, DDP over hccl and fast_ddp cost beside none
startup/      how fast ranks connect, and what each of them holds open
prediction/   what hccl_py.simulate predicts beside what is measured
uneven        synthesized plans beside the table's algorithms, on four hosts whose links differ
agents        hundreds of agents of hccl-launch on one machine: seconds, CPU time, memory
check_cost    the cost of comparing every call with the other ranks' calls
replay        a replayed graph beside its calls one by one and in a group()
harness       what the commands share: options, the record of a run and its report, exit codes

Nothing of the package imports them, and they are not installed.
"""
