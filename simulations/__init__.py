"""The whole daemon in virtual time, and the dishonest workers that testnets and tests invite.

``world`` runs real daemons (``node.daemon``) on simulated ports: ``loop`` (a clock that jumps),
``network`` (lines, distances, partitions), ``directory``, ``storage``, ``engines`` (modelled
compute). Everything that happens is an event of the ``trace``; ``checkers`` watch it and share no
code with the protocol, ``numbers`` and ``report`` are made from it. ``cli`` is what a person types.
"""
