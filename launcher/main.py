"""The command hccl-launch.

Reads like its use: check the command line, prepare the environment, make elastic's configuration,
run the job. Exit codes: 0; 2 for a wrong command line; the first failing rank's own; 128 + signal.
"""

import os
import secrets
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hccl_py.launcher.agent import Program
    from hccl_py.launcher.options import Request

_WORKER = str(Path(__file__).with_name("worker.py"))


def main(argv: Sequence[str] | None = None) -> int:
    """Run hccl-launch and return its exit code."""
    try:
        _import_torch_without_threads()
        from hccl_py.launcher import job, options

        try:
            request = options.parse(sys.argv[1:] if argv is None else argv, os.environ)
            with _log_folder(request):
                return job.run(_prepare(request))
        except options.UsageError as error:
            print(f"hccl-launch: error: {error}", file=sys.stderr)
            return 2
    except KeyboardInterrupt:
        # Ctrl-C before the job began; `job` handles signals itself.
        return 128 + signal.SIGINT


@contextmanager
def _log_folder(request: "Request") -> Iterator[None]:
    """Give the logs a folder if the command line names none; keep it only if logs are in it."""
    args = request.args
    # Local ranks, which torchrun would put before each line, repeat on every emulated node.
    os.environ.setdefault("TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE", "[rank ${rank}] ")
    if args.log_dir is not None and args.tee == "0" and args.redirects == "0":
        # --log-dir alone keeps every rank's output, and prints it as well.
        args.tee = "3"
    if args.log_dir is not None:
        yield
        return
    folder = args.log_dir = tempfile.mkdtemp(prefix="hccl_launch_")
    try:
        yield
    finally:
        # Without --tee or --redirects it holds error files alone, which the report contains.
        if (args.tee, args.redirects) == ("0", "0") or not os.listdir(folder):
            shutil.rmtree(folder, ignore_errors=True)


def _import_torch_without_threads() -> None:
    """Import torch so that no thread starts: this process forks the agent.

    numpy's BLAS, which torch imports, starts one thread per core by default.
    """
    name = "OPENBLAS_NUM_THREADS"
    before = os.environ.get(name)
    os.environ[name] = "1"
    import torch.distributed.run  # noqa: F401

    del os.environ[name]
    if before is not None:
        os.environ[name] = before


def _prepare(request: "Request") -> "Program":
    from torch.distributed.run import config_from_args

    from hccl_py.launcher import options
    from hccl_py.launcher.agent import Program

    args, nodes = request.args, request.local_nodes
    _set_environment(request)
    _announce(request)
    if not (args.no_python or args.run_path):
        script = [args.training_script, *args.training_script_args]
        args.training_script_args = ["-m", *script] if args.module else script
        args.training_script, args.module = _WORKER, False
    if nodes is not None:
        # To elastic all ranks of this machine are one node's; the agent emulates the nodes.
        args.nnodes, args.nproc_per_node = "1", str(nodes * request.ranks_per_node)
        args.rdzv_backend, args.rdzv_endpoint = "c10d", f"127.0.0.1:{args.master_port or 0}"
        args.rdzv_conf, args.local_addr = "is_host=true", "127.0.0.1"
        # Ranks see it as TORCHELASTIC_RUN_ID: the same after a restart, another in the next job.
        args.rdzv_id = f"job-{secrets.token_hex(4)}"
    elif args.master_port is None:
        args.master_port = 29500
    try:
        config, command, arguments = config_from_args(args)
    except (AssertionError, ValueError, RuntimeError, OSError) as error:
        raise options.UsageError(" ".join(str(error).split())) from error
    fixed = config.min_nodes == config.max_nodes
    world_size = config.max_nodes * config.nproc_per_node if fixed else None
    emulated = nodes if nodes and request.emulated else 0
    return Program(config, command, tuple(arguments), world_size, emulated)


def _set_environment(request: "Request") -> None:
    ranks_here = (request.local_nodes or 1) * request.ranks_per_node
    cores = len(os.sched_getaffinity(0))
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, cores // ranks_here)))
    if request.local_nodes is not None:
        # All ranks are on this machine, so one secret made here reaches them all. It travels in
        # the environment, which other users cannot read, never in an argument or a log.
        os.environ.setdefault("HCCL_SECRET", secrets.token_hex(32))


def _announce(request: "Request") -> None:
    args, text = request.args, ""
    if request.emulated:
        ranks = "1 rank" if request.ranks_per_node == 1 else f"{request.ranks_per_node} ranks"
        text = (
            f"emulating {request.local_nodes} nodes of {ranks} on this machine "
            "(no --node-rank given); ranks of different nodes talk TCP"
        )
    elif request.scheduler:
        text = (
            f"{request.scheduler} is set, so nodes are not emulated; this is node "
            f"{args.node_rank} of {args.nnodes}, waiting for the others at "
            f"{args.master_addr}:{args.master_port or 29500}"
        )
    if text:
        print(f"hccl-launch: {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
