"""Tables and pictures on a terminal, for people."""
