"""The agent of a host that `hccl-launch --hosts` reached over ssh.

It reads its part of the job as a line of JSON from stdin, which stays open. The end of stdin is the
end of the connection and ends everything that this agent started.
"""

import json
import os
import sys
from pathlib import Path
from typing import Any

from hccl_py.launcher import supervisor
from hccl_py.launcher.exit_codes import CANNOT_RUN, UsageError
from hccl_py.launcher.job.layout import RankProgram, Slot, rank_command
from hccl_py.launcher.machine.open_files import allow_ranks
from hccl_py.launcher.machine.scratch import scratch_folder
from hccl_py.launcher.main import pass_over_warnings
from hccl_py.launcher.output.options import OutputOptions
from hccl_py.launcher.output.rank_output import check_folder
from hccl_py.launcher.own_lines import say
from hccl_py.launcher.placement.binding import Bind


def main() -> int:
    """Run this host's part of a job, and return its exit code."""
    pass_over_warnings()
    # Unbuffered: the agent waits for the end of the same descriptor.
    line = b""
    while not line.endswith(b"\n"):
        data = os.read(0, 1)
        if not data:
            return CANNOT_RUN  # the connection ended first
        line += data
    message = json.loads(line)
    os.chdir(message["directory"])
    os.environ.update(message["environment"])
    try:
        allow_ranks(message["ranks"])
        check_folder(OutputOptions(*message["output"]).log_dir)
        folder = scratch_folder()
        return supervisor.run(lambda: _run(message, folder), message["stop_s"], folder)
    except UsageError as error:
        say(f"error: {error}")
        return error.exit_code


def _run(message: dict[str, Any], folder: Path) -> int:
    from hccl_py.launcher.job import join

    ranks = message["ranks"]
    program = RankProgram(
        command=rank_command(message["program"], message["is_python"]),
        environment=dict(os.environ),
        slots=tuple(Slot(message["index"], rank) for rank in range(ranks)),
        emulates_nodes=False,
        stop_s=message["stop_s"],
        folder=folder,
        bind=Bind(message["bind"]),
        output=OutputOptions(*message["output"]),
        has_stdin=False,
        has_user=message["has_user"],
    )
    coordinator = join.CoordinatorAddress(
        agent_index=message["index"],
        num_agents=message["num_agents"],
        name=(message["coordinator"], message["port"]),
        address=message["coordinator"],
        secret=message["secret"],
        connect_timeout_s=message["connect_timeout_s"],
        ends_with_stdin=True,
    )
    return join.run(program, coordinator)


if __name__ == "__main__":
    sys.exit(main())
