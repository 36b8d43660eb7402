"""Pages of torch's debug server (`torch.distributed.debug`) that show hccl's groups.

Each rank answers the server by handlers. Torch's own handler for the flight recorder of CPU groups
reads C++ groups only, and cannot be replaced. So hccl-py serves the pages of absent backends: of
TorchComms, and of NCCL in a torch for CPUs.
"""

import contextlib
import ctypes
import functools
import importlib.util
import json
from typing import Any

from torch._C import _distributed_c10d as c10d

from hccl_py.observe.dump_files import default_folder
from hccl_py.observe.flight_recorder import content_for_torch, recorders_of_process, write_all


def _health() -> Any:
    engines = [(one.member.name, one.engine) for one in recorders_of_process()]
    failed = [name for name, engine in engines if engine is not None and engine.failed()]
    return {"healthy": not failed, "failed_groups": failed}


def _dump() -> Any:
    return {"files": [str(path) for path in write_all(default_folder(), _REASON)]}


_REASON = "torch's debug server"
_ANSWERS = {
    "torchcomms_fr_trace_json": lambda: content_for_torch(_REASON),
    "dump_nccl_trace_json": lambda: content_for_torch(_REASON),
    "torchcomms_health_check": _health,
    "torchcomms_fr_dump_file": _dump,
}


@functools.cache  # once
def answer_debug_server() -> None:
    """Register the handlers whose names are free."""
    # The package torchcomms ends the process if its names are taken.
    has_own = importlib.util.find_spec("torchcomms") is not None
    for name, answer in _ANSWERS.items():
        if has_own and name.startswith("torchcomms"):
            continue
        handler = functools.partial(_respond, answer)
        # Torch drops its handlers after Python has ended, so Python must not free them.
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(handler))
        with contextlib.suppress(ValueError):  # torch's own, for NCCL
            c10d._register_handler(name, handler)


def _respond(answer: Any, request: Any, response: Any) -> None:
    try:
        text, status = json.dumps(answer()), 200
    except Exception as error:  # no exception may reach torch's C++
        text, status = f"{type(error).__name__}: {error}", 500
    response.set_content(text, "application/json")
    response.set_status(status)
