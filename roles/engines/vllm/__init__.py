"""vLLM as the engine of an inference node: its scheduler and kernels, the protocol's sampling.

vLLM runs the model; what the protocol defines stays ours and is computed where the logits are. A
*logits processor* (``sampling``) divides by the temperature, adds the protocol's noise and leaves
vLLM one token to take. Beside it ``records`` keeps what a rollout has to state of each token: its
log-probability and, of the final states, the values that proofs cover. ``worker`` is what runs in
vLLM's workers, ``launch`` starts them, ``engine`` is the port.

Weights are swapped in place. vLLM keeps packed copies of some, and with a tied output layer it kept
an old one (0.32, measured), so after each swap a ``probe`` compares with the policy's file. A
validator has the built-in engine: see docs/adr/0022.
"""
