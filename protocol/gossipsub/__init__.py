"""GossipSub v1.1 as a pure machine, wire compatible with ``/meshsub/1.1.0``.

The idea: every subscriber of a topic keeps full messages flowing along a sparse random *mesh* of a
few peers, and tells a few others every heartbeat which messages it holds, so that whoever the mesh
missed can ask. Specification: libp2p ``pubsub/gossipsub/gossipsub-v1.0.md`` and ``-v1.1.md``.

Read in this order: ``params``, ``events``, ``rpc``, ``message``, ``mesh``, ``peers``, ``cache``,
``lazy``, ``relay``, ``flood``, ``router``; for peer scoring ``score_params``, ``scores``,
``deliveries``, ``promises``, ``report``; ``outbox`` and ``frames`` are two pure parts of its driver
in ``node``.

Where it deviates from the specification, and why:

* An application validator decides *before* relay; nothing unvalidated leaves the node.
* Own messages are flood-published (v1.1), to 64 peers at most, so there is no fanout table; IHAVE
  covers every topic that has cached messages, subscribed or not.
* IHAVE also goes to mesh peers when fewer than D_lazy subscribers are outside the mesh: in a small
  swarm everybody is inside, and a push that a full queue dropped must still be found.
* No peer exchange: who exists is known from signed membership records, and a list of strangers'
  addresses inside a PRUNE is an eclipse vector. PX records of others are skipped, whatever their
  sender's score: there is no threshold for them.
* The outbound quota (``D_out``) counts peers that we have dialled by our own choice only: whoever
  offers something can have us dial it.
* P3 and P3b are off: topics that are silent for minutes would punish everybody.
* All topics have the same weights; a message that does not decode names none, and counts for P7.
* There are no explicit peering agreements: genesis nodes have to behave like everybody.
* Only Ed25519 authors: the key is inside ``from``, so one message has one spelling.
"""
