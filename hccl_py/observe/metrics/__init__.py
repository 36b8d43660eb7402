"""Metrics for operators: HCCL_METRICS_PORT and HCCL_METRICS_FILE, off by default.

settings     the two variables, read and checked; read first
counters     what this process counted, from counters that the engine keeps anyway
exporter     one process of a node exports for all; the others answer it
exposition   OpenMetrics text, over HTTP and in a file
"""
