"""cloudpickle, with the file names of functions, which tracebacks need.

cloudpickle leaves them out, so that its pickles are the same everywhere. Importing this module
imports cloudpickle.
"""

import io
from collections import ChainMap
from types import CodeType
from typing import Any

from cloudpickle import CloudPickler


def dumps(value: Any) -> bytes:
    """Return a pickle with functions and classes of the main program by value."""
    buffer = io.BytesIO()
    _Pickler(buffer).dump(value)
    return buffer.getvalue()


def _reduce(code: CodeType) -> tuple[Any, ...]:
    make, parts = CloudPickler.dispatch_table[CodeType](code)
    return _code, (code.co_filename, make, parts)


def _code(filename: str, make: Any, parts: tuple[Any, ...]) -> CodeType:
    made: CodeType = make(*parts)
    return made.replace(co_filename=filename)


class _Pickler(CloudPickler):  # type: ignore[misc]  # cloudpickle has no types
    dispatch_table = ChainMap({CodeType: _reduce}, CloudPickler.dispatch_table)
