"""`python -m evald_server` is `evald`."""

import sys

from .cli import main

sys.exit(main())
