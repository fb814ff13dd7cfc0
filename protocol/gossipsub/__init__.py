"""GossipSub v1.1 as a pure state machine, wire compatible with ``/meshsub/1.1.0``.

The idea: every subscriber of a topic forwards full messages along a sparse random *mesh* of a few
peers. At each heartbeat it advertises its recent messages to a few others, which request those that
the mesh missed. Specification: libp2p ``pubsub/gossipsub/gossipsub-v1.0.md`` and ``-v1.1.md``.

Reading order: ``params``, ``events``, ``rpc``, ``message``, ``peer_state``, ``message_cache``,
``mesh``, ``gossip``, ``forwarding``, ``router``; for peer scoring ``peer_score`` and
``inspection``. ``send_queue`` is a pure part of the driver in ``node``.

Deviations from the specification, with reasons:

* An application validator decides *before* a message is forwarded; nothing unvalidated is sent.
* Own messages are flood-published (v1.1), to 64 peers at most, so there is no fanout table. IHAVE
  covers every topic with cached messages, subscribed or not.
* IHAVE also goes to mesh peers if fewer than D_lazy subscribers are outside the mesh. In a small
  swarm all are inside, and IHAVE must recover a message that a full queue dropped.
* No peer exchange: members are known from signed records, and a list of untrusted addresses inside
  a PRUNE is an eclipse vector. PX records are skipped for every sender score, without a threshold.
* The outbound quota (``D_out``) counts only peers that we dialled by our own choice, because an
  untrusted peer that offers something can make us dial it.
* P3 and P3b are off: topics that are silent for minutes would penalise every peer.
* All topics have the same weights. A message that does not decode has no topic and counts for P7.
* There are no explicit peering agreements: genesis nodes follow the same rules as all others.
* Only Ed25519 authors: ``from`` contains the key, so a message has one encoding.
"""
