"""What both manifests need of the command line: a name, and sizes that are known before the job."""

import re

from hccl_py.launcher.options import Options
from hccl_py.launcher.usage_error import UsageError

# A pod's host name is the name and its number, in 63 characters at most.
_MOST_CHARACTERS = 50


def name_of(options: Options) -> str:
    """Make a name of the program's, as DNS and Slurm take it: `train` of `src/train.py`."""
    program = options.program[options.program[0] == "-m"].rpartition("/")[2]
    name = re.sub("[^a-z0-9]+", "-", program.removesuffix(".py").lower()).strip("-")
    return (name if name[:1].isalpha() else f"job-{name}")[:_MOST_CHARACTERS].strip("-")


def check(options: Options, option: str) -> None:
    """Raise UsageError where the options leave the size open, or start nodes themselves."""
    if options.elastic:
        raise UsageError(f"{option}: expected --nnodes N, got options of an elastic job")
    if options.remote is not None or options.coordinator is not None or options.standalone:
        raise UsageError(
            f"{option}: the scheduler says which node is where: leave out --hosts, --hostfile, "
            "--node-rank, --master-addr, --rdzv-endpoint and --standalone"
        )
