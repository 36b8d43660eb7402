"""The output of ranks: whole lines with their rank's name on the screen, in files, in reports.

Start at `rank_output.py`, which joins the others: `lines.py` reads a rank's pipes, `screen.py`
writes to the terminal or pipe of the launcher, `options.py` says which lines go where.

Everything here is for one thread that waits for descriptors. Nothing here waits.
"""
