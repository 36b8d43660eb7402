"""From what every rank reports to the failure that came first, and its text.

    record.py       Failure, Report, Diagnosis: what travels between ranks
    reports.py      the reports of all ranks; how ranks and calls are named
    reporter.py     one rank of one communicator: sends its report, applies the diagnosis
    diagnosis.py    the order of causes
    mismatch.py  deadlock.py  ended.py  timeout.py       one rule a file
    errors.py       Diagnosis -> the exception that the caller sees
    stall.py        the warning about a call without progress

What a rank did itself outweighs what others observed of it: a mismatch, an exception or an abort
comes before a death, a death before a rank that left, and a timeout last, because each of the
others looks like a timeout from afar. Text is rendered here and read nowhere.
"""
