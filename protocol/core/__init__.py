"""Values, encoding, cryptography and containers that every protocol package uses."""
