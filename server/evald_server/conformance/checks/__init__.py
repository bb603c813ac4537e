"""All rules, sorted by number, which is the order of the checks."""

from typing import Final

from evald_server.conformance.rules import ContractRule

from . import description, encryption, results, sessions, times, turns

RULES: Final = sorted(
    (
        found
        for module in (description, turns, times, sessions, encryption, results)
        for found in vars(module).values()
        if isinstance(found, ContractRule)
    ),
    key=lambda found: found.number,
)
