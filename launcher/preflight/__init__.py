"""What is wrong with the hosts of a job, found before a rank runs.

The agent of each node answers questions; the head asks them and judges the answers. Questions and
answers are plain values, and nothing here carries them between the two.

check.py     the head's side: asks all nodes, in which order, and collects the report
rounds.py    who dials whom
node/        a node's side: what it has, and the way from it to other nodes
judge/       answers of all nodes -> findings and tables
finding.py   a finding and its text
"""
