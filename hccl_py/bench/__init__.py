"""The benchmarks: each command starts its own ranks and checks results before it takes times.

collective/   hccl-bench: collectives, beside gloo and on registered memory
tuning/       hccl-bench --tune: the algorithm table, measured
verbs/        hccl-perftest: queue pairs, with the columns of ib_write_bw and ib_send_lat
carry_out     how a command ends
namespaces    two network namespaces joined by virtual Ethernet, as two hosts
"""
