"""The whole daemon in virtual time, and the dishonest workers that testnets and tests invite.

Real daemons (``node.daemon``) run on simulated ports. Everything that happens is an event of a
trace; checkers, numbers and reports are made from it and share no code with the protocol.
"""
