"""Prediction against measurement: is what `hccl_py.simulate` says what the clock says?

__main__  the command: start reading here
measure   times of every algorithm on namespaces joined by slow and fast links
compare   the same cells simulated, and the table

python -m benchmarks.prediction measure cells.json --ranks 2 4 --rates unlimited 1gbit
python -m benchmarks.prediction compare cells.json --costs costs.json
"""
