"""The exception that ends this process, as one line for the other ranks' errors."""

import contextlib
import pickle
import sys
from pathlib import Path

from hccl_py.observe.flight_recorder import Call
from hccl_py.transport import _core
from hccl_py.transport.errors import InvalidArgumentError

_LONGEST = 500


def last_exception() -> BaseException | None:
    """Return the exception that ends the interpreter; None if there is none, or it is interactive.

    An interactive interpreter also keeps the last exception that it printed, and continues.
    """
    if hasattr(sys, "ps1") or sys.flags.interactive:
        return None
    error = getattr(sys, "last_exc", None) or getattr(sys, "last_value", None)
    return error if isinstance(error, BaseException) else None


def exception_at_exit() -> str:
    """Describe the exception that ends this process; "" if there is none."""
    error = last_exception()
    return describe_error(error) if error is not None else _reported_to_parent()


def _reported_to_parent() -> str:
    """Return what `torch.multiprocessing.spawn` wrote in the file that its parent reads."""
    if "torch.multiprocessing" not in sys.modules:
        return ""
    from multiprocessing import current_process

    process = current_process()
    target = getattr(process, "_target", None)
    if getattr(target, "__module__", "") != "torch.multiprocessing.spawn":
        return ""
    with contextlib.suppress(Exception):
        traceback = pickle.loads(Path(process._args[-1]).read_bytes())  # type: ignore[attr-defined]
        return one_line(traceback.strip().splitlines()[-1])
    return ""


def handled_error(core: _core.Communicator | None = None) -> str:
    """Describe the exception that the caller is handling; "" if there is none.

    `core` is the engine of a communicator that closes. Then a rejected argument is described too,
    unless a call has ended since: peers wait for the rejected call.
    """
    error = sys.exc_info()[1]
    if isinstance(error, Exception):
        return describe_error(error)
    made_ns, text = InvalidArgumentError.latest
    if core is None or any(Call(*one).ended_ns > made_ns for one in core.records()):
        return ""
    return one_line(f"InvalidArgumentError: {text}") if text else ""


def ends_by_exception() -> bool:
    """Return whether an exception ends the caller, other than that of sys.exit()."""
    error = sys.exc_info()[1]
    return error is not None and not isinstance(error, SystemExit | GeneratorExit)


def describe_error(error: BaseException) -> str:
    """Describe an exception in one line."""
    text = one_line(str(error))
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def one_line(text: str) -> str:
    """Return any text as one short line that can be sent to other ranks."""
    text = " ".join(text.encode(errors="backslashreplace").decode().split())
    return text if len(text) <= _LONGEST else text[:_LONGEST] + " ..."
