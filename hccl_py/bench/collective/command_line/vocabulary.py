"""Names that `hccl-bench` takes: those of nccl-tests, of hccl_demo and of torch."""

from __future__ import annotations

from hccl_py.bench.collective.cases import CASES

COLLECTIVES = {"all2all": "all_to_all", "sendrecv": "send_recv"}
"""Values of --test as hccl_demo and nccl-tests have them -> ours."""

NO_COLLECTIVES = {"scale_validation": "give --validate to measure every pair of ranks"}
"""Tests of hccl_demo that are an option of their own here."""

DATA_TYPES = {"half": "float16", "float": "float32", "double": "float64"}
"""Values of -d as nccl-tests has them -> torch's."""

REDUCTIONS = {"prod": "product"}
"""Values of --op as nccl-tests has them -> ours."""

ALL_REDUCTIONS = ("sum", "product", "min", "max", "avg")
"""What --op all stands for: what every element type knows."""

NO_REDUCTIONS = {
    name: f"--op is the reduction, as in nccl-tests: give --test {name} for the collective"
    for name in (*CASES, *COLLECTIVES)
}
"""Collectives, where a reduction is asked for."""

IN_CHECKOUT = dict.fromkeys(
    ("mpich", "openmpi", "ucc"),
    "MPI and UCC run in environments of their own: python -m benchmarks.peers in a checkout",
)
"""Values that --compare does not take, and what to give instead."""

MEANINGLESS = {
    ("-t", "--nthreads"): "a rank is a process: give -g N for N ranks on a node",
    ("-p", "--parallel_init"): "ranks are processes and always start in parallel; leave it out",
    ("-m", "--agg_iters"): "calls are not aggregated: give -n N for N calls",
    ("-z", "--blocking"): "a call always blocks: give --measure latency to time calls one by one",
    ("-G", "--cudagraph"): "a CPU has no CUDA graphs: give -n N for N calls",
    ("-R", "--local_register"): "give --registered to measure hccl on registered memory",
    ("-mpi", "--mpi"): "this command starts its own ranks: give -g N and --nnodes N",
    ("--node_id",): "this command starts the ranks of all nodes: give --nnodes N",
    ("--custom_comm",): "give -g N for the ranks, --ranks_list for pairs of them",
    ("--scaleout_bw",): "the limit is measured in the same run, see the column limit",
}
"""Options of the two tools that mean nothing on CPUs, and what to give instead."""
