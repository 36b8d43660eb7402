"""What a communicator records: calls, counters, and the files that `hccl-trace` reads."""
