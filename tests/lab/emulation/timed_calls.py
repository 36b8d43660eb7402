"""A rank that times all_reduces; rank 0 prints the seconds of each, by size, as JSON."""

import json
import sys
import time

import numpy as np

from hccl_py import Communicator

with Communicator(timeout_s=120.0) as comm:
    found = {}
    for size, calls in (map(int, word.split(":")) for word in sys.argv[1:]):
        data = np.ones(size // 4, dtype=np.float32)
        times_s = []
        for call in range(calls + 1):
            comm.barrier()
            begun_s = time.perf_counter()
            comm.all_reduce(data)
            times_s.append(time.perf_counter() - begun_s)
            assert data[0] == data[-1] == float(comm.world_size) ** (call + 1)
        found[size] = times_s[1:]  # the first makes the connections
    if comm.rank == 0:
        print(json.dumps(found))
