"""Tasks with checkable answers: a seed gives a prompt, and a completion gets a reward.

Everything here is pure and exact (hashes and integers), because validators recompute each prompt
and each reward and must get the same. ``base.environment`` finds a task by the name that the run
manifest uses; a new task is one module and one line in ``base.ENVIRONMENTS``.
"""
