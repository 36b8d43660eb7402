"""`hccl-bench --tune`: measures every algorithm on this layout and writes the file for HCCL_TUNING.

    main    the command, the file, chosen against best: start reading here
    sweep   what every rank does: measures, with agreement on how often
    fit     numbers of the cost model from measurements, by least squares

In `hccl_py/algorithms/choice/`, `tuning.py` reads the file and `cost.py` has the model.
"""
