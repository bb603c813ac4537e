package acme;

import com.google.protobuf.Any;
import com.google.protobuf.Duration;
import com.google.protobuf.InvalidProtocolBufferException;
import com.google.protobuf.Struct;
import com.google.protobuf.util.JsonFormat;
import com.google.rpc.BadRequest;
import com.google.rpc.RetryInfo;
import evald.v1.Context.EvaluatorContext;
import evald.v1.Context.Invocation;
import evald.v1.EvaluationServiceGrpc;
import evald.v1.EvaluationServiceOuterClass.EvaluateRequest;
import evald.v1.EvaluationServiceOuterClass.EvaluateResponse;
import evald.v1.Evaluator.EvaluatorSpec;
import evald.v1.Message.ChatMessage;
import evald.v1.Message.FunctionCall;
import evald.v1.Message.ToolCall;
import evald.v1.Result.AggregatedEvaluation;
import evald.v1.Result.EvaluationResult;
import evald.v1.Result.Verdict;
import io.grpc.ManagedChannel;
import io.grpc.StatusRuntimeException;
import io.grpc.netty.shaded.io.grpc.netty.NettyChannelBuilder;
import io.grpc.protobuf.StatusProto;
import java.util.Arrays;
import java.util.Iterator;
import java.util.List;
import java.util.Locale;
import java.util.concurrent.TimeUnit;

/**
 * Has evald evaluate one turn, with a tool call in it, and prints the results as they come. Arguments:
 * {@code [HOST:PORT] [TYPE[=CONFIG as JSON]]...}
 *
 * <p>Ends with 0 when the turn passed, 1 when it did not, 2 when evald could not evaluate it.
 */
public final class Caller {
  private Caller() {}

  public static void main(String[] args) throws InvalidProtocolBufferException {
    String server = args.length > 0 ? args[0] : "127.0.0.1:50051";
    List<String> evaluators =
        args.length > 1
            ? Arrays.asList(args).subList(1, args.length)
            : List.of(
                "tool-use={\"expectations\": [{\"name\": \"book_flight\", \"minCalls\": 1}]}",
                "regex={\"pattern\": \"BK-[0-9]{5}\"}");
    EvaluateRequest.Builder request = EvaluateRequest.newBuilder().setContext(turn());
    for (String evaluator : evaluators) {
      request.addEvaluators(spec(evaluator));
    }
    ManagedChannel channel;
    try {
      channel = NettyChannelBuilder.forTarget(server, Access.toServer(server)).build();
    } catch (IllegalArgumentException problem) {
      System.err.println(problem.getMessage());
      System.exit(2);
      return;
    }
    int code;
    try {
      code = evaluate(channel, request.build()) ? 0 : 1;
    } catch (StatusRuntimeException problem) {
      explain(problem);
      code = 2;
    }
    channel.shutdownNow();
    System.exit(code);
  }

  private static boolean evaluate(ManagedChannel channel, EvaluateRequest request) {
    // evald ends the evaluation in time for its summary to arrive before the deadline.
    Iterator<EvaluateResponse> events =
        EvaluationServiceGrpc.newBlockingStub(channel).withDeadlineAfter(30, TimeUnit.SECONDS).evaluate(request);
    AggregatedEvaluation summary = null;
    while (events.hasNext()) {
      EvaluateResponse event = events.next();
      event.getResultsList().forEach(Caller::print);
      summary = event.hasSummary() ? event.getSummary() : summary;
    }
    if (summary == null) {
      throw io.grpc.Status.DATA_LOSS.withDescription("the stream ended without a summary").asRuntimeException();
    }
    System.out.println(word(summary.getVerdict()) + ": " + summary.getReason());
    // Not "is not FAILED": an evaluation with an error has not passed.
    return summary.getVerdict() == Verdict.VERDICT_PASSED;
  }

  private static EvaluatorContext turn() {
    return EvaluatorContext.newBuilder()
        .addMessages(message("user", "Book me a flight to Lisbon tomorrow."))
        .addMessages(
            ChatMessage.newBuilder()
                .setRole("assistant")
                .addToolCalls(
                    ToolCall.newBuilder()
                        .setId("call-1")
                        .setFunction(
                            FunctionCall.newBuilder().setName("book_flight").setArguments("{\"to\": \"LIS\"}"))))
        .addMessages(message("tool", "{\"reference\": \"BK-12345\"}").setToolCallId("call-1"))
        .addMessages(
            message("assistant", "You fly at 9:40. Your reference is BK-12345; questions go to help@acme.example."))
        .setLastInvocation(
            Invocation.newBuilder().setLatency(Duration.newBuilder().setSeconds(1).setNanos(234_000_000)))
        .build();
  }

  private static ChatMessage.Builder message(String role, String text) {
    return ChatMessage.newBuilder().setRole(role).setText(text);
  }

  private static EvaluatorSpec spec(String text) throws InvalidProtocolBufferException {
    String[] parts = text.split("=", 2);
    Struct.Builder config = Struct.newBuilder();
    if (parts.length == 2) {
      JsonFormat.parser().merge(parts[1], config);
    }
    return EvaluatorSpec.newBuilder().setType(parts[0]).setConfig(config).build();
  }

  private static void print(EvaluationResult result) {
    StringBuilder line = new StringBuilder("  %-8s %-16s".formatted(word(result.getVerdict()), result.getName()));
    if (result.hasScore()) {
      line.append(String.format(Locale.ROOT, " score %.2f", result.getScore()));
    }
    if (result.hasValue()) {
      line.append(" value ").append(result.getValue());
    }
    if (result.hasError()) {
      line.append(" %s: %s".formatted(result.getError().getCode(), result.getError().getMessage()));
    }
    System.out.println(line.append(' ').append(result.getReason()));
  }

  private static String word(Verdict verdict) {
    return verdict.name().replace("VERDICT_", "");
  }

  /** Says why evald did not evaluate: the fields that are wrong, or when to try again. */
  private static void explain(StatusRuntimeException problem) {
    System.err.println(problem.getStatus().getCode() + ": " + problem.getStatus().getDescription());
    com.google.rpc.Status status = StatusProto.fromThrowable(problem);
    for (Any detail : status == null ? List.<Any>of() : status.getDetailsList()) {
      try {
        if (detail.is(BadRequest.class)) {
          detail.unpack(BadRequest.class).getFieldViolationsList().forEach(
              field -> System.err.println("  " + field.getField() + ": " + field.getDescription()));
        } else if (detail.is(RetryInfo.class)) {
          Duration delay = detail.unpack(RetryInfo.class).getRetryDelay();
          System.err.printf("  try again in %d ms%n", delay.getSeconds() * 1000 + delay.getNanos() / 1_000_000);
        }
      } catch (InvalidProtocolBufferException unreadable) {
        System.err.println("  a detail that cannot be read: " + unreadable.getMessage());
      }
    }
  }
}
