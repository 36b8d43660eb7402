"""Test files import the harnesses that lie in this folder and in transport/ by their bare names."""

import sys
from pathlib import Path

for folder in (Path(__file__).parent, Path(__file__).parent / "transport"):
    sys.path.insert(0, str(folder))
