"""The ports of a simulated daemon: storage, directory, signatures, modelled engines."""
