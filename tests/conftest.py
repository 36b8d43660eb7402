"""Test files import the harnesses that lie in this folder by their bare names."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
