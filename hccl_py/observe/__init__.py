"""Records of a communicator: calls, counters, and the files that `hccl-trace` reads.

flight_recorder   the last calls of each communicator; read first
dump_files        its files, as JSON and for torch's analyser
dump_signal       SIGUSR2 writes them
call_sites        the user's lines, with HCCL_DEBUG=1
statistics        what `statistics()` returns
metrics/          HCCL_METRICS_PORT, HCCL_METRICS_FILE: all ranks of a node, for Prometheus
trace/            hccl-trace: one timeline of the files of all ranks
"""
