"""`DistributedRunner` of Optimum Habana, over hccl-launch."""

import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

_LAUNCH = (sys.executable, "-m", "hccl_py.launcher.main", "--habana-shim")


class DistributedRunner:
    """Runs commands one after the other, each as one job of CPU ranks with the Habana shim.

    The arguments are Optimum's, so a program only changes its import.

    Args:
        command_list: each a script and its arguments, as in a shell.
        world_size: ranks of the job; a hostfile has its own number.
        hostfile: lines `host slots=N`.
        use_mpi, use_deepspeed, use_env, map_by: accepted; hccl-launch starts the ranks itself.
        master_port: of the ranks' store.
    """

    def __init__(  # noqa: PLR0913  # Optimum's signature
        self,
        command_list: Sequence[str] = (),
        world_size: int = 1,
        hostfile: str | Path | None = None,
        use_mpi: bool = False,
        use_deepspeed: bool = False,
        master_port: int = 29500,
        use_env: bool = False,
        map_by: str = "socket",
    ) -> None:
        ranks = ("--world-size", str(world_size)) if hostfile is None else ("--hostfile", hostfile)
        self._command = (*_LAUNCH, *map(str, ranks), "--master-port", str(master_port))
        self._scripts = [tuple(shlex.split(each)) for each in command_list]

    def run(self) -> int:
        """Run the commands up to the first that fails, and return the exit code of the last."""
        for script in self._scripts:
            code = subprocess.run((*self._command, *script), check=False).returncode
            if code:
                return code
        return 0
