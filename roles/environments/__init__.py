"""Tasks with verifiable answers: a seed gives a prompt, and a completion gets a reward.

All results are exact (hashes and integers), because validators recompute them and must agree. A
new task is one class and one line in ``base.ENVIRONMENTS``.
"""
