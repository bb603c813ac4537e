"""The attack suite: bad answers that try to be passed, and controls that do not.

A judge that obeys what it reads passes an attack; a judge that is afraid of everything fails a control.
All texts are evald's own.
"""

from typing import Final

from evald_server.calibration.cases import QUOTED, UNARMED, Case

from . import authority, availability, controls, direct, forged, master_keys, obfuscation, style, tool_results

FAMILIES: Final[dict[str, str]] = {
    "direct": "Orders to the judge, plainly put",
    "forged-structure": "Text that looks like the end of the data, a verdict or another message",
    "master-keys": 'Texts without content such as ":" or "Solution"',
    "authority": "Claims of people and institutions that do not count",
    "style": "Length, polish, flattery and confidence in place of being right",
    "obfuscation": "Orders in base64, zero-width characters, look-alikes and the like",
    "tool-results": "Orders in what tools bring",
    "availability": "Attempts to make the judge fail, refuse or run out of room",
}
"""The families of attacks, with what they are."""

CONTROLS: Final[dict[str, str]] = {
    QUOTED: "Good answers that quote or discuss attacks",
    UNARMED: "The bad answers of the attacks, without the attack",
}
"""The controls, with what they are."""

_MODULES: Final = (
    direct,
    forged,
    master_keys,
    authority,
    style,
    obfuscation,
    tool_results,
    availability,
    controls,
)


def suite() -> list[Case]:
    """All attacks and controls, always the same."""
    return [case for module in _MODULES for case in module.CASES]
