"""From what all ranks saw to the one verdict that all of them raise.

    evidence.py   a rank's report, read
    record.py     a failure as one rank observed it
    death.py      died, left, unreachable
    mismatch.py   different calls
    timeout.py    who had arrived, who had not, how far the slowest got

What a rank did itself outweighs what others saw of it: a mismatch, an exception, an abort come
before a death, a death before a rank that left, and a timeout last, for it is what all the others
look like from afar.
"""

from hccl_py.diagnosis.diagnose import Judge, Verdict
from hccl_py.diagnosis.record import Cause

__all__ = ["Cause", "Judge", "Verdict"]
