"""Private names of torch that elastic jobs build on; nothing of torch is replaced.

torch may rename them in any version. `problem` is asked before this folder imports them, so that a
user gets a line and not a traceback.
"""

from importlib import import_module
from importlib.metadata import version

_TESTED = "2.13 and 2.15"
_NAMES = (
    "torch.distributed.elastic.agent.server.api:SimpleElasticAgent._rendezvous",
    "torch.distributed.elastic.agent.server.api:SimpleElasticAgent._start_workers",
    "torch.distributed.elastic.agent.server.api:SimpleElasticAgent._stop_workers",
    "torch.distributed.elastic.agent.server.api:SimpleElasticAgent._restart_workers",
    "torch.distributed.elastic.agent.server.api:SimpleElasticAgent._monitor_workers",
    "torch.distributed.elastic.agent.server.api:SimpleElasticAgent._exit_barrier",
    "torch.distributed.elastic.agent.server.api:SimpleElasticAgent._shutdown",
    "torch.distributed.elastic.rendezvous.dynamic_rendezvous:_BackendRendezvousStateHolder._sanitize",
    "torch.distributed.elastic.rendezvous.dynamic_rendezvous:_NodeDesc",
    "torch.distributed.elastic.rendezvous.dynamic_rendezvous:create_handler",
    "torch.distributed.elastic.rendezvous.c10d_rendezvous_backend:create_backend",
    "torch.distributed.run:config_from_args",
    "torch._C._distributed_c10d:Store",
)


def problem() -> str:
    """Return what this torch does not have, in a line; empty: it has everything."""
    missing = [name for name in _NAMES if not _is_there(name)]
    if not missing:
        return ""
    return (
        f"torch {version('torch')} has no {', '.join(missing)}: elastic jobs were tested with "
        f"torch {_TESTED}; install such a torch, or give --nnodes a fixed number"
    )


def _is_there(name: str) -> bool:
    module, _, path = name.partition(":")
    try:
        found: object = import_module(module)
    except ImportError:
        return False
    for part in path.split("."):
        if not hasattr(found, part):
            return False
        found = getattr(found, part)
    return True
