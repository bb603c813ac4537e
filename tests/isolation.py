"""How scripts under test are isolated: by bubblewrap where it works, else not at all."""

from typing import Final, Literal

from evald_server.scripts.isolation import bubblewrap_problem

ISOLATION: Final[Literal["bubblewrap", "none"]] = "none" if bubblewrap_problem() else "bubblewrap"
