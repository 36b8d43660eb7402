"""`hccl-bench --tune`: measures every algorithm on this layout and writes the file for HCCL_TUNING.

    main    the command, the file, chosen against best: start reading here
    sweep   what every rank does: measures, with agreement on how often
    fit     numbers of the cost model from measurements, by least squares

`hccl_py/algorithms/tuning.py` reads the file, `hccl_py/algorithms/cost.py` has the model.
"""
