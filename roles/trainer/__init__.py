"""The trainer role: learns from verified rollouts by asynchronous GRPO and publishes policies.

``grpo`` is the objective, ``batch`` turns verified sequences into rows, ``engine`` steps,
``checkpoint`` makes state durable, ``genesis`` makes the policy that a run starts from.
"""
