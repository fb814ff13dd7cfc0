"""Studies of the protocol: so far the dishonest workers that testnets and tests invite."""
