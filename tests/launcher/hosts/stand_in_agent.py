"""Stands in for the agent: prints what it was told and where it runs, and ends with its stdin."""

import json
import os
import sys

told = json.loads(sys.stdin.readline())
print(json.dumps({"told": told, "pid": os.getpid(), **os.environ}), flush=True)
print("the agent is up", file=sys.stderr, flush=True)
sys.exit(int(sys.stdin.read() or 0))
