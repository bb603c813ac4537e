"""A judge that says what recorded models said: calibrates them without asking any of them again."""

import evald


class RecordedJudge(evald.Evaluator, type="acme.recorded-judge", kind=evald.ASSERTION):
    """The first of two answers is the better one, as a recorded judge saw it."""

    judge: str

    def evaluate(self, ctx: evald.EvaluatorContext) -> evald.Result:
        """Its preference for the order in which the two were shown."""
        order = ctx.metadata["order"]
        preferred = ctx.metadata["recorded"][self.judge][order]
        if not preferred:
            return evald.errored("JUDGE_UNPARSEABLE", f"{self.judge} named no answer")
        first = order[0]
        if preferred == first:
            return evald.passed(f"{self.judge} prefers the first answer")
        return evald.failed(f"{self.judge} prefers the second answer")
