"""`with hccl_py.capture() as graph:` records the collectives of the block as it runs."""

import contextlib
from collections.abc import Iterator
from threading import get_ident

from hccl_py.calls.call_group import require_no_group
from hccl_py.calls.recording import CAPTURES, GUARDS, Recording
from hccl_py.graphs.agreement import require_agreement
from hccl_py.graphs.graph import Graph
from hccl_py.transport.errors import InvalidArgumentError


@contextlib.contextmanager
def capture() -> Iterator[Graph]:
    """Run the block, and record this thread's calls on communicators and process groups.

    `graph.replay()` repeats these calls, and nothing else of the block, on the same buffers. All
    ranks of a communicator must begin and end their blocks at the same calls. The end of the block
    checks that, by a call on each communicator with collectives in it.

    Raises:
        InvalidArgumentError: the thread is already in a block or a group(); or a replay could not
            repeat a call, with the reason.
        MismatchError: ranks recorded different calls. The communicator stays open.
        CommunicatorError: a call failed.
    """
    require_no_group("capture")
    thread = get_ident()
    if thread in CAPTURES:
        raise InvalidArgumentError("capture: expected no open block of capture() in this thread")
    graph, recording = Graph(), Recording()
    CAPTURES[thread] = recording
    try:
        try:
            with contextlib.ExitStack() as guards:
                for guard in GUARDS:
                    guards.enter_context(guard())
                yield graph
        finally:
            recording.is_open = False
            del CAPTURES[thread]
        require_agreement(recording)
    except BaseException as error:
        graph.drop(f"its block was left by {type(error).__name__}: {error}")
        raise
    graph.fill(recording)
