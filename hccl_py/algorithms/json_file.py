"""JSON files that a person may have written."""

import json
from pathlib import Path
from typing import Any

from hccl_py.transport.errors import InvalidArgumentError


def read_json(path: Path, kind: str = "") -> Any:
    """Return what a file holds; `kind` stands before its path in messages.

    Raise InvalidArgumentError: it cannot be read, or is no JSON.
    """
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InvalidArgumentError(f"{kind}{path}: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise InvalidArgumentError(f"{kind}{path}: expected JSON: {error}") from error
