"""Finds problems of a job's hosts before a rank runs.

The agent of each node answers questions; the coordinator asks them and evaluates the answers.
Questions and answers are plain values; this folder does not send them.

check.py     the coordinator's side: asks all nodes, pairs nodes that dial, makes the report
node/        a node's side: its facts, and probes of the network to other nodes
evaluation/  answers of all nodes -> findings and tables
finding.py   a finding and its text
"""
