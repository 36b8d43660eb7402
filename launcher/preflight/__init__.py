"""What is wrong with the hosts of a job, found before a rank runs.

The agent of each node answers questions; the coordinator asks them and judges the answers.
Questions and answers are plain values, and nothing here carries them between the two.

check.py     the coordinator's side: asks all nodes, who dials whom, and collects the report
node/        a node's side: what it has, and the way from it to other nodes
judge/       answers of all nodes -> findings and tables
finding.py   a finding and its text
"""
