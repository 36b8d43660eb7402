"""`hccl-bench --tune`: measures every algorithm on this layout and writes the file for HCCL_TUNING.

    main    the command, the file, the check of choices: start reading here
    sweep   the measurements of a rank, as often as all ranks agree
    fit     numbers of the cost model from measurements, by least squares

In `hccl_py/algorithms/choice/`, `tuning.py` reads the file and `cost.py` has the model.
"""
