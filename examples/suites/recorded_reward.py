"""An evaluator that reads a verdict which was recorded with the answer, for suites of known outcome."""

import evald


@evald.assertion("recorded-reward")
def recorded_reward(ctx: evald.EvaluatorContext) -> evald.Result:
    """The reward that was recorded with the answer is 1."""
    reward = ctx.last_invocation.metadata.get("reward")
    if not isinstance(reward, int | float):
        return evald.errored("MISSING_DATA", "The recorded answer has no metadata.reward")
    reason = f"Recorded reward {reward:g}"
    return evald.passed(reason, score=1.0) if reward == 1 else evald.failed(reason, score=float(reward))
