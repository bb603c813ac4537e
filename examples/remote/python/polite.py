"""The smallest remote evaluator: `python polite.py`, beside an evald server."""

import evald


@evald.assertion("acme.polite")
def polite(ctx: evald.EvaluatorContext) -> bool:
    """The answer says please or thank you."""
    return any(word in (ctx.answer or "").lower() for word in ("please", "thank you"))


evald.connect(polite)  # $EVALD_SERVER, else 127.0.0.1:50051
