"""The exception that ends this process, in one line for the other ranks to read."""

import contextlib
import pickle
import sys
from pathlib import Path

_LONGEST = 500


def exception_at_exit() -> str:
    """Name what the interpreter ends with; "" if it ends well, or is somebody's shell.

    The interpreter keeps the last exception that it printed. In an interactive one that was any of
    the user's mistakes, which did not end it.
    """
    if hasattr(sys, "ps1") or sys.flags.interactive:
        return ""
    error = getattr(sys, "last_exc", None) or getattr(sys, "last_value", None)
    return describe_error(error) if isinstance(error, BaseException) else _reported_to_parent()


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
        return _one_line(traceback.strip().splitlines()[-1])
    return ""


def handled_error() -> str:
    """Name the exception that the caller handles right now; "" if there is none."""
    error = sys.exc_info()[1]
    return describe_error(error) if isinstance(error, Exception) else ""


def ends_by_exception() -> bool:
    """Whether the caller is left by an exception that is no sys.exit()."""
    error = sys.exc_info()[1]
    return error is not None and not isinstance(error, SystemExit | GeneratorExit)


def describe_error(error: BaseException) -> str:
    """Name an exception in one line."""
    text = _one_line(str(error))
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _one_line(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= _LONGEST else text[:_LONGEST] + " ..."
