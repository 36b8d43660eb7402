"""The steps of hccl-launch.

It checks the command line, prints what an option asks for, or chooses the part of the job that this
process is, and runs it. No torch is imported here. Exit codes are in `exit_codes.py`.
"""

import os
import signal
import sys
from collections.abc import Sequence

from hccl_py.launcher import supervisor
from hccl_py.launcher.command_line.read import parse
from hccl_py.launcher.exit_codes import CANNOT_RUN, UsageError
from hccl_py.launcher.machine.processes import adopt_orphans, is_in_background, kill_descendants
from hccl_py.launcher.machine.scratch import scratch_folder
from hccl_py.launcher.own_lines import say
from hccl_py.launcher.parts import choose
from hccl_py.launcher.signals import end
from hccl_py.transport.errors import BootstrapError
from hccl_py.transport.network.system_calls import named, require_system_calls

_STOPS = signal.SIGINT, signal.SIGTERM
_KILL_S = 0.5


def launch(words: Sequence[str]) -> int:
    """Run a command line and return its exit code."""
    _open_streams()
    before = {number: signal.getsignal(number) for number in _STOPS}
    adopt_orphans()  # of an ssh that `_end` kills while it forks
    try:
        for number in _STOPS:  # until the supervisor handles signals itself
            signal.signal(number, _end)
        options = parse(words, os.environ)
        os.environ.update(options.variables)
        text = choose.text(options)
        if text:
            print(text, end="")
            return 0
        folder = scratch_folder()
        part = choose.elastic_part if options.elastic else choose.part
        body = part(options, folder, words)
        require_system_calls()
        with named("pidfd_open"):
            os.close(os.pidfd_open(os.getpid()))
        return supervisor.run(body, options.stop_s, folder)
    except (UsageError, BootstrapError) as error:
        say(f"error: {error}")
        return error.exit_code if isinstance(error, UsageError) else CANNOT_RUN
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _end(number: int, _frame: object) -> None:
    try:
        kill_descendants(_KILL_S)  # such as ssh, which may wait for a name
    finally:
        end(number)


def _open_streams() -> None:
    """Open standard streams that are closed, and give up the terminal of another foreground job.

    Another file would get the descriptor and the lines of a closed stream.
    """
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(descriptor, True)  # by the ranks
    if is_in_background(os.getpid()):  # rank 0 would take what the user types for the shell
        os.dup2(descriptor, 0)
    os.close(descriptor)
    sys.stdout = sys.stdout or os.fdopen(1, "w", closefd=False)
    sys.stderr = sys.stderr or os.fdopen(2, "w", closefd=False)
