"""Tasks with checkable answers: a seed gives a prompt, and a completion gets a reward.

Everything here is exact (hashes and integers), because validators recompute it and must get the
same. A new task is one module and one line in ``base.ENVIRONMENTS``.
"""
