"""A responder in a process of its own, for a node in a network namespace: JSON lines in and out.

python responder_process.py ENVIRONMENT_AS_JSON CLOCK_OFFSET_S
"""

import json
import sys
import time
from contextlib import closing

from hccl_py.launcher.preflight.node.responder import CheckResponder


def main() -> None:
    offset_s = float(sys.argv[2])
    responder = CheckResponder(json.loads(sys.argv[1]), clock=lambda: time.time() + offset_s)
    with closing(responder):
        for line in sys.stdin:
            print(json.dumps(responder.answer(json.loads(line))), flush=True)


if __name__ == "__main__":
    main()
