"""How a command ends: one line for a failure, and nothing left behind."""

import signal
import sys
from collections.abc import Callable

from hccl_py.bench.collective.ranks import RankFailure
from hccl_py.bench.namespaces import NamespaceError
from hccl_py.command_line import until_reader_ends
from hccl_py.transport.errors import InvalidArgumentError


def carry_out(prog: str, work: Callable[[], int]) -> int:
    """Do the work of a command.

    Returns:
        The exit code of the work; 1 if a rank failed or namespaces could not be made, 2 if an
        argument is wrong, 130 after Ctrl-C or SIGTERM, 141 if the reader of the output ended.
    """
    # SIGTERM unwinds as Ctrl-C does: network namespaces would outlive this process.
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        return until_reader_ends(work)
    except InvalidArgumentError as error:
        print(f"{prog}: {error}", file=sys.stderr)
        return 2
    except (RankFailure, NamespaceError) as failure:
        print(f"{prog}: {failure}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print(f"{prog}: interrupted", file=sys.stderr)
        return 130
    finally:
        signal.signal(signal.SIGTERM, before)
