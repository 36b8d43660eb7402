"""Decides from the reports of all ranks which failure came first, and renders its text.

    record.py       Failure, Report, Diagnosis: the messages between ranks
    reports.py      the reports of all ranks; how ranks and calls are named
    reporter.py     one rank of one communicator: sends its report, applies the diagnosis
    diagnosis.py    the order of causes
    mismatch.py  deadlock.py  ended.py  timeout.py       the rules
    errors.py       Diagnosis -> the exception that the caller sees
    stall.py        the warning about a call without progress
    torchrun.py     has torchrun report the rank that failed first

A rank's own action has precedence over what others observed: a mismatch, an exception or an abort
comes before a death, and a death before a rank that left. A timeout comes last, because every other
failure also causes timeouts. No code parses the text.
"""
