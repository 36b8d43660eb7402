"""Measures the tokens and the CPU time of vLLM on CPUs: `python -m benchmarks.serving`.

`__main__` has the command line, the rounds and the tables, `engines` the start of engines, and
`vllm_engine` the program that is one.
"""
