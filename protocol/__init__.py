"""Protocol of a run: untrusted machines train one model together, without an orchestrator.

A *run* is everything that its nodes agree on beforehand (``run``). Its digest is part of every
signature. A node is an Ed25519 key (``core.crypto``). It publishes a signed record about itself,
with the proof that the run requires of new keys (``membership``). Every message is a frozen model
in a signed envelope (``messages``) with one canonical encoding (``core.codec``).

A *worker* takes the newest policy and computes its assignment: problems, sampling noise and length
targets follow from the checkpoint, its key and a slot number. It stores the finished rollout
(``rollout``) and gossips a signed commit to its digest.

In the next epoch the validators are ranked by a hash over the epoch's beacon and the commit
(``consensus``). Only commits that arrived on time are checked. A validator reads the body,
recomputes the rewards, and repeats the computation with one prefill (``toploc``). It rejects a
rollout that deviates more than honest engines do (``rollout``). The first committee decides if it
is unanimous; otherwise it is enlarged and two thirds decide. Their signed verdicts form a
*certificate*. Two contradicting verdicts of one validator are *evidence* and exclude it.

The *trainer* learns from certified rollouts only. It publishes the next policy as a signed
checkpoint manifest that names the commits it learned from. A node accepts the version when it knows
the outcome of each commit, or when most validators have accepted it. Weights spread over a forest
that each node computes locally (``shardcast``), messages over ``gossipsub``.

The outcome of every commit and the chain of versions follow from a grow-only set of those messages
(``ledger``). ``replica`` combines all of it: the single entry point for every message of a run, and
the resulting state.

Everything here is pure. Time, randomness and identity are arguments; effects are return values; a
rejected message leaves the state unchanged. A mistake of another node is a value (``Fault``), a
mistake of our own is an exception. The same code runs live and in simulated time.

Reading order: ``core.types``, ``messages``, ``run``, ``membership``, ``rollout``, ``consensus``,
``ledger``, ``replica``; then ``gossipsub``, ``toploc`` and ``shardcast``.
"""
