"""``python -m prime_node``."""

import sys

from prime_node import main

sys.exit(main())
