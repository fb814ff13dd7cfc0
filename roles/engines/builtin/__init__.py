"""Built-in engines: decoder, continuous batching, generation and verification."""
