"""JSON files that may be written by hand."""

import json
from pathlib import Path
from typing import Any

from hccl_py.transport.errors import InvalidArgumentError


def read_json(path: Path, kind: str = "") -> Any:
    """Return the content of a file; messages put `kind` before its path.

    Raise InvalidArgumentError: it cannot be read, or is not JSON.
    """
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InvalidArgumentError(f"{kind}{path}: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise InvalidArgumentError(f"{kind}{path}: expected JSON: {error}") from error
