"""Evaluators of your own: `evald serve --plugin examples/politeness.py` adds them to a server."""

from pydantic import Field

import evald


class Polite(evald.Evaluator, type="acme.polite", kind=evald.ASSERTION):
    """The answer holds one of the polite words."""

    words: list[str] = Field(["please", "thank", "welcome", "sorry"], description="Any of these will do.")

    def evaluate(self, ctx: evald.EvaluatorContext) -> evald.Result:
        """Found or not, with the word."""
        if ctx.answer is None:
            return evald.failed("No assistant message found")
        answer = ctx.answer.lower()
        found = next((word for word in self.words if word in answer), None)
        if found is None:
            return evald.failed(f"none of {', '.join(self.words)}", score=0.0)
        return evald.passed(f'says "{found}"', score=1.0)


question_count = evald.define_evaluator(
    type="acme.question-count",
    kind=evald.METRIC,
    evaluate=lambda ctx: (ctx.answer or "").count("?"),
    description="How many questions the agent asks.",
)
