"""The benchmarks: each command starts its own ranks and checks results before it takes times.

command_line/ what all of them read from a command line
collective/   hccl-bench: collectives, beside gloo and on registered memory
overlap/      training steps: what DDP over gloo, DDP over hccl and fast_ddp cost beside none
peers/        Communicator beside MPICH, Open MPI and UCC, in fresh starts
prediction/   what hccl_py.simulate predicts beside what is measured
uneven        synthesized plans beside the table's algorithms, on four hosts whose links differ
verbs/        hccl-perftest: queue pairs, with the columns of ib_write_bw and ib_send_lat
namespaces    two network namespaces joined by virtual Ethernet, as two hosts
agents        hundreds of agents of hccl-launch on one machine: seconds, CPU time, memory
check_cost    what it costs to compare every call with those of the other ranks
"""
