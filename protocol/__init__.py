"""The protocol: how strangers' machines train one model together, with nobody in charge.

A *run* is everything that its nodes agree on beforehand (``recipe``, ``manifest``); its digest is
in every signature. A node is an Ed25519 key (``crypto``) and says what it is in a signed record
(``membership``), with a proof of what the run asks of new keys (``admission``, ``admitted``). Every
message is a frozen model in a signed envelope (``messages``), spelled in exactly one way
(``codec``).

A *worker* takes the newest policy and computes what its place in the run assigns to it: problems,
sampling noise and length targets follow from the checkpoint, its key and a slot number
(``assignment``). It writes the finished rollout down (``rollout``), and gossips a signed commit to
its digest.

The epoch after decides who checks it: validators ranked by a hash over the epoch's beacon and the
commit (``electorate``, ``committee``), and only commits that came in time are checked. They read
the body, recompute rewards, and repeat the computation by one prefill (``toploc``), which is as far
from theirs as honest engines are or further (``statistics``, ``audit``). The first few decide if
they agree; otherwise more are asked and two thirds decide. Their signed verdicts together are a
*certificate*. A validator that signs two that contradict each other has signed the *evidence* that
excludes it.

The *trainer* learns from certified rollouts only and publishes the next policy as a signed
checkpoint manifest, which names the commits that it learned from. A node takes it when each of them
has an outcome there, or when most validators have taken it. The weights reach everyone over a
forest that each node computes for itself (``shardcast``), the messages by ``gossip``.

What became of every commit, and the chain of versions, follow from a grow-only set of those
messages (``ledger``). ``replica`` is the whole of it: the one door through which every message of a
run comes in, and the state that follows.

Everything here is pure. Time, randomness and identity are arguments; effects are return values; a
rejected message leaves the state untouched. What another node did wrong is a value (``Fault``),
what we did wrong is an exception. So the same code runs live and in simulated time.

Read in this order: ``types``, ``messages``, ``recipe``, ``manifest``, ``membership``,
``assignment``, ``committee``, ``audit``, ``ledger``, ``replica``; then the packages ``gossip``,
``toploc`` and ``shardcast``, each of which opens with a page like this one.
"""
