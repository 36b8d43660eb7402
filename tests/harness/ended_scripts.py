"""Ends a forked process as the interpreter ends a script: its atexit handlers and all."""

import ctypes
import sys
from typing import NoReturn


def end_as_script(error: BaseException | None = None) -> NoReturn:
    """End the interpreter as after the last line of a script, or by an error nobody caught."""
    sys.modules["__main__"].__dict__["error_of_script"] = error
    if error is not None:
        # Ends with SystemExit; prints anything else, and keeps it as sys.last_value.
        ctypes.pythonapi.PyRun_SimpleString(b"raise error_of_script")
    ctypes.pythonapi.Py_Exit(0 if error is None else 1)
    raise AssertionError("the interpreter has ended")
