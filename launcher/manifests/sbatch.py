"""A batch script for Slurm."""

import os
import shlex
import sys

from hccl_py.launcher.manifests.job import check, name_of
from hccl_py.launcher.options import Options

_OPTION = "--print-sbatch"
_SCRIPT = """\
#!/bin/bash
# Submit this script: sbatch FILE
# Add what your cluster asks for, such as lines with --partition, --account and --time.
#SBATCH --job-name={name}
#SBATCH --output=%x-%j.log
#SBATCH --chdir={folder}
#SBATCH --nodes={num_nodes}
# A task is an hccl-launch, which starts all ranks of its node.
#SBATCH --ntasks-per-node=1
# Whole nodes. To share nodes with other jobs, write --cpus-per-task=N in place of --exclusive and
# --mem=SIZE in place of --mem=0, which is all memory.
#SBATCH --exclusive
#SBATCH --mem=0

# The nodes of this job recognize each other by it.
HCCL_SECRET=$(od -An -N32 -tx1 /dev/urandom | tr -d ' \\n')
export HCCL_SECRET

# This Python has to exist on every node. srun binds nothing: that is up to hccl-launch --bind.
exec srun --export=ALL --cpu-bind=none \\
    {command}
"""


def text(options: Options) -> str:
    """Return the script; raise UsageError where the options do not fit Slurm."""
    check(options, _OPTION)
    own = [word for word in options.own_words if word.replace("_", "-") != _OPTION]
    program = options.program[options.program[0] == "-m" :]
    return _SCRIPT.format(
        name=name_of(options),
        folder=shlex.quote(os.getcwd()),
        num_nodes=options.num_nodes,
        command=shlex.join([sys.executable, "-m", "hccl_py.launcher.main", *own, *program]),
    )
