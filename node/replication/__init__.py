"""How signed messages come in, are kept, and reach nodes that missed them."""
