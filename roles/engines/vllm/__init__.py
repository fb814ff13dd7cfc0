"""vLLM as the generation engine: vLLM's scheduler and kernels with the protocol's sampling.

A *logits processor* (``sampling``) divides by the temperature, adds the protocol's noise and leaves
vLLM one token to take. ``records`` keeps the rollout's data per token: its log-probability, and the
values of the final states that proofs cover. ``worker`` runs in vLLM's workers, ``launch`` starts
them, ``engine`` implements the port.

Weights are swapped in place. vLLM keeps packed copies of some, and version 0.32 kept a stale tied
output layer (measured). So after each swap a ``probe`` compares with the policy's file. Validators
use the built-in engine: see docs/adr/0022.
"""
