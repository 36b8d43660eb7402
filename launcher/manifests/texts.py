"""The texts: a batch script for Slurm, and an indexed Job for Kubernetes with its headless Service.

Variables that `schedulers/kubernetes.py` and torchrun read give the pods their numbers and the
rendezvous address. YAML is written without a library: a string of JSON is also one of YAML.
"""

import json
import os
import re
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path

from hccl_py.launcher.exit_codes import UsageError
from hccl_py.launcher.options import DEFAULT_MASTER_PORT, JobOptions

_SBATCH, _K8S = "--print-sbatch", "--print-k8s"
# A pod's host name is the name and its number, in 63 characters at most.
_MOST_CHARACTERS = 50
# The manifest has them elsewhere.
_SIZES = ("--nnodes", "--nproc-per-node", "--nproc", "--world-size", "--master-port")
_AGENT_EXTRA_S = 10
_GIB_PER_RANK = 2


def sbatch(options: JobOptions) -> str:
    """Return the script; UsageError: the options do not fit Slurm."""
    _check(options, _SBATCH)
    own = [word for word in options.own_words if word.replace("_", "-") != _SBATCH]
    words = [sys.executable, "-m", "hccl_py.launcher.main", *own, *_program(options)]
    return _template("job.sbatch").format(
        name=name_of(options),
        folder=shlex.quote(os.getcwd()),
        num_nodes=options.num_nodes,
        command=shlex.join(words),
    )


def k8s(options: JobOptions) -> str:
    """Return the manifest; UsageError: the options do not fit Kubernetes."""
    _check(options, _K8S)
    words = ["hccl-launch", *_without_sizes(options.own_words), *_program(options)]
    return _template("job.yaml").format(
        name=name_of(options),
        num_nodes=options.num_nodes,
        num_ranks=options.ranks_per_node,
        port=options.master_port or DEFAULT_MASTER_PORT,
        grace_s=round(options.stop_s) + _AGENT_EXTRA_S,
        gib_per_rank=_GIB_PER_RANK,
        memory_gib=_GIB_PER_RANK * options.ranks_per_node,
        command="\n".join(f"            - {_quoted(word)}" for word in words),
    )


def name_of(options: JobOptions) -> str:
    """Make a name for DNS and Slurm from the program's: `train` for `src/train.py`."""
    program = options.program[options.program[0] == "-m"].rpartition("/")[2]
    name = re.sub("[^a-z0-9]+", "-", program.removesuffix(".py").lower()).strip("-")
    return (name if name[:1].isalpha() else f"job-{name}")[:_MOST_CHARACTERS].strip("-")


def _check(options: JobOptions, option: str) -> None:
    """Raise UsageError if the size is open, or the options start nodes themselves."""
    if options.elastic:
        raise UsageError(f"{option}: expected --nnodes N, got options of an elastic job")
    if options.remote is not None or options.coordinator is not None or options.standalone:
        raise UsageError(
            f"{option}: the scheduler says which node is where: leave out --hosts, --hostfile, "
            "--node-rank, --master-addr, --rdzv-endpoint and --standalone"
        )


def _program(options: JobOptions) -> tuple[str, ...]:
    return options.program[options.program[0] == "-m" :]


def _template(name: str) -> str:
    return Path(__file__).with_name(name).read_text()


def _without_sizes(words: tuple[str, ...]) -> Iterator[str]:
    left = iter(words)
    for word in left:
        name, equals, value = word.partition("=")
        name = name.replace("_", "-")
        if name in _SIZES:
            value = value if equals else next(left)
            if not value.isdecimal():
                raise UsageError(f"{_K8S}: expected a number after {name}, got {value!r}")
        elif name != _K8S:
            yield word


def _quoted(word: str) -> str:
    # Kubernetes expands $(NAME) in a command, and turns $$( into $(.
    return json.dumps(word.replace("$(", "$$("), ensure_ascii=False)
