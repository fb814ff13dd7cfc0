"""TOPLOC: proofs that generated tokens came out of the agreed model, and what else is checked.

A worker proves the final hidden states of its rollout: 258 bytes for 32 tokens in bf16. A validator
recomputes the states with one prefill over the same tokens, which is many times faster than
generating them, and compares. Locality-sensitive means that small numerical differences between
machines give small errors, while another model, prompt or precision gives large ones.

The idea is of Ong and others, arXiv 2501.16007; ``proof`` names where this differs and why. A proof
says nothing about how tokens were chosen, about the last layer or the last token. ``sampling`` has
the noise that makes the choice of a token repeatable; ``protocol.rollout.audit`` checks all of it,
and decides what the statistics mean.

Everything is exact integer arithmetic up to the final statistics: the same states give the same
bytes on every machine. Read in this order: ``layout`` (the bytes), ``selection`` (which values),
``field`` (polynomials), ``proof`` (build and verify), ``results``, ``sampling``.
"""
