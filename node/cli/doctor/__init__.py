"""Looks at everything that a node needs before it joins, and says what to do about the rest."""
