import acme.Plugin;
import evald.v1.Evaluator.EvaluatorKind;
import evald.v1.Evaluator.EvaluatorType;
import java.util.List;

/** A plugin whose evaluator waits as long as its config says, or raises. Run with examples/remote/java's jar. */
public final class Waiting {
  public static void main(String[] args) {
    EvaluatorType type =
        EvaluatorType.newBuilder()
            .setType("test.wait")
            .setVersion("1.0.0")
            .setKind(EvaluatorKind.EVALUATOR_KIND_ASSERTION)
            .build();
    Plugin.Evaluate wait = (turn, config) -> {
      if (config.containsFields("raise")) {
        throw new IllegalStateException("a secret");
      }
      System.out.println("began");
      try {
        Thread.sleep((long) (config.getFieldsOrThrow("seconds").getNumberValue() * 1000));
      } catch (InterruptedException problem) {
        System.out.println("told to stop");
        throw problem;
      }
      return Plugin.passed(1, "waited");
    };
    new Plugin("test.waiting", "1.0.0", 4, List.of(new Plugin.Evaluator(type, wait))).main(args);
  }
}
