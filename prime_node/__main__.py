"""``python -m prime_node``."""

from prime_node import main

main()
