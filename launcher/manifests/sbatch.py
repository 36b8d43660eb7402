"""A batch script for Slurm."""

import os
import shlex
import sys
from pathlib import Path

from hccl_py.launcher.manifests.job import check, name_of
from hccl_py.launcher.options import Options

_OPTION = "--print-sbatch"
_SCRIPT = Path(__file__).with_name("job.sbatch")


def text(options: Options) -> str:
    """Return the script; raise UsageError where the options do not fit Slurm."""
    check(options, _OPTION)
    own = [word for word in options.own_words if word.replace("_", "-") != _OPTION]
    program = options.program[options.program[0] == "-m" :]
    return _SCRIPT.read_text().format(
        name=name_of(options),
        folder=shlex.quote(os.getcwd()),
        num_nodes=options.num_nodes,
        command=shlex.join([sys.executable, "-m", "hccl_py.launcher.main", *own, *program]),
    )
