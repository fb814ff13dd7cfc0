"""The whole daemon in virtual time, and the dishonest workers of testnets and tests.

Real daemons (``node.daemon``) run on simulated ports, and each port records its actions as events
of a trace. Checkers, numbers and reports are computed from the trace and share no code with the
protocol.
"""
