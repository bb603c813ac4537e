package acme;

import com.google.protobuf.Duration;
import com.google.protobuf.InvalidProtocolBufferException;
import com.google.protobuf.Struct;
import com.google.protobuf.Value;
import com.google.protobuf.util.JsonFormat;
import evald.plugin.v1.EvaluatorPluginServiceGrpc;
import evald.plugin.v1.EvaluatorPluginServiceOuterClass.DescribeRequest;
import evald.plugin.v1.EvaluatorPluginServiceOuterClass.DescribeResponse;
import evald.plugin.v1.EvaluatorPluginServiceOuterClass.EvaluateRequest;
import evald.plugin.v1.EvaluatorPluginServiceOuterClass.EvaluateResponse;
import evald.plugin.v1.RegistryServiceGrpc;
import evald.plugin.v1.RegistryServiceOuterClass.AttachRequest;
import evald.plugin.v1.RegistryServiceOuterClass.AttachResponse;
import evald.plugin.v1.RegistryServiceOuterClass.DeregisterRequest;
import evald.plugin.v1.RegistryServiceOuterClass.LeaseState;
import evald.plugin.v1.RegistryServiceOuterClass.Pong;
import evald.plugin.v1.RegistryServiceOuterClass.RegisterRequest;
import evald.plugin.v1.RegistryServiceOuterClass.RegisterResponse;
import evald.plugin.v1.RegistryServiceOuterClass.RenewLeaseRequest;
import evald.plugin.v1.RegistryServiceOuterClass.TaskCompleted;
import evald.plugin.v1.RegistryServiceOuterClass.WorkerDraining;
import evald.plugin.v1.RegistryServiceOuterClass.WorkerHello;
import evald.plugin.v1.Task.Capability;
import evald.plugin.v1.Task.EvaluationOutput;
import evald.plugin.v1.Task.EvaluationTask;
import evald.plugin.v1.Task.PluginInfo;
import evald.v1.Context.EvaluatorContext;
import evald.v1.Evaluator.EvaluatorType;
import evald.v1.Result.EvaluationError;
import evald.v1.Result.Verdict;
import io.grpc.ManagedChannel;
import io.grpc.Server;
import io.grpc.Status;
import io.grpc.Status.Code;
import io.grpc.StatusRuntimeException;
import io.grpc.health.v1.HealthCheckResponse.ServingStatus;
import io.grpc.netty.shaded.io.grpc.netty.NettyChannelBuilder;
import io.grpc.netty.shaded.io.grpc.netty.NettyServerBuilder;
import io.grpc.protobuf.services.HealthStatusManager;
import io.grpc.stub.ClientCallStreamObserver;
import io.grpc.stub.ServerCallStreamObserver;
import io.grpc.stub.StreamObserver;
import java.io.IOException;
import java.net.InetSocketAddress;
import java.util.ArrayList;
import java.util.EnumSet;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import java.util.UUID;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionException;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.ThreadLocalRandom;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.stream.Collectors;

/**
 * Serves Java functions to evald as evaluators. One program does it either way: it listens and evald dials it
 * ({@link #listen}), or it dials out to evald ({@link #connect}). Copy this file, Access.java and Turns.java.
 */
public final class Plugin {
  /**
   * Evaluates one turn with a config that evald has checked against the schema. Called by many threads at once; its
   * thread is interrupted when the task is cancelled or its time is over. It must give the same answer to a task that
   * is sent again.
   */
  public interface Evaluate {
    EvaluationOutput apply(EvaluatorContext turn, Struct config) throws Exception;
  }

  /** One type of evaluator. */
  public record Evaluator(EvaluatorType type, Evaluate evaluate) {
    /** A key of a config that the type's schema does not know: evald refuses it, other callers may not. */
    private Optional<String> unknownKey(Struct config) throws InvalidProtocolBufferException {
      Struct.Builder schema = Struct.newBuilder();
      JsonFormat.parser().merge(type.getConfigSchemaJson().isEmpty() ? "{}" : type.getConfigSchemaJson(), schema);
      Value others = schema.getFieldsOrDefault("additionalProperties", Value.newBuilder().setBoolValue(true).build());
      Struct known = schema.getFieldsOrDefault("properties", Value.getDefaultInstance()).getStructValue();
      return others.getBoolValue()
          ? Optional.empty()
          : config.getFieldsMap().keySet().stream().filter(key -> !known.containsFields(key)).findAny();
    }

    private EvaluationOutput run(EvaluationTask task) throws Exception {
      Optional<String> unknown = unknownKey(task.getConfig());
      return unknown.isPresent()
          ? errored("INVALID_CONFIG", "config.%s: unknown key".formatted(unknown.get()))
          : evaluate.apply(task.getContext(), task.getConfig());
    }
  }

  /** The operator of the server has removed the plugin. */
  public static final class Revoked extends Exception {
    Revoked() {
      super("the operator of the server has removed this plugin");
    }
  }

  // evald's own limit is 16 MiB unless its operator raises it.
  private static final int MAX_MESSAGE_BYTES = 64 << 20;
  /** The largest output that a server accepts. */
  private static final int MAX_OUTPUT_BYTES = 1 << 20;
  // How long open tasks may still take after SIGTERM; Kubernetes kills after 30 s.
  private static final long GRACE_MS = 10_000;
  private static final long MAX_BACKOFF_MS = 3_000;
  // With one of these, trying the same again is of no use. Only for the first try: later refusals come and go with the
  // server's configuration.
  private static final Set<Code> FINAL =
      EnumSet.of(Code.INVALID_ARGUMENT, Code.ALREADY_EXISTS, Code.PERMISSION_DENIED, Code.FAILED_PRECONDITION,
          Code.UNAUTHENTICATED, Code.UNIMPLEMENTED);

  private static final Set<String> OPTIONS = Set.of("--connect", "--listen", "--register", "--target", "--tls-profile");

  private final PluginInfo info;
  private final List<Evaluator> evaluators;
  private final ExecutorService threads;
  private final AtomicInteger activeTasks = new AtomicInteger();
  // Completed by SIGTERM and SIGINT.
  private final CompletableFuture<Void> stop = new CompletableFuture<>();

  /** maxConcurrency: tasks that evald may have open here at a time. */
  public Plugin(String name, String version, int maxConcurrency, List<Evaluator> evaluators) {
    this.evaluators = evaluators;
    this.info =
        PluginInfo.newBuilder()
            .setName(name)
            .setVersion(version)
            .addContractVersions("evald.plugin.v1")
            .addAllEvaluatorTypes(evaluators.stream().map(Evaluator::type).toList())
            .setMaxConcurrency(maxConcurrency)
            .addCapabilities(Capability.CAPABILITY_CANCEL)
            .setSdk("java/example")
            .build();
    this.threads = Executors.newFixedThreadPool(maxConcurrency, runnable -> {
      Thread thread = new Thread(runnable, "evaluator");
      thread.setDaemon(true);
      return thread;
    });
  }

  private Optional<Evaluator> find(EvaluationTask task) {
    return evaluators.stream()
        .filter(each -> each.type().getType().equals(task.getType()))
        .filter(each -> task.getVersion().isEmpty() || task.getVersion().equals(each.type().getVersion()))
        .findAny();
  }

  /** A task's output: that of the evaluator, or an error in its place. Whoever cancels the task completes it. */
  private CompletableFuture<EvaluationOutput> work(EvaluationTask task) {
    Optional<Evaluator> evaluator = find(task);
    if (evaluator.isEmpty()) {
      String offered = evaluators.stream()
          .map(each -> each.type().getType() + " " + each.type().getVersion())
          .collect(Collectors.joining(", "));
      String got = (task.getType() + " " + task.getVersion()).strip();
      String message = "\"%s\" is not offered by this worker, which offers %s".formatted(got, offered);
      return CompletableFuture.completedFuture(errored("UNKNOWN_TYPE", message));
    }
    CompletableFuture<EvaluationOutput> output = new CompletableFuture<>();
    activeTasks.incrementAndGet();
    Future<?> running = threads.submit(() -> {
      try {
        output.complete(sendable(evaluator.get().run(task)));
      } catch (Throwable problem) { // also a StackOverflowError: an answer must go out
        log("%s: task %s: %s", task.getType(), task.getTaskId(), problem);
        output.complete(errored("EVALUATOR_EXCEPTION", "the evaluator raised an exception; its log has the details"));
      }
    });
    if (task.hasTimeout()) {
      EvaluationOutput late = errored("TIMEOUT", "the evaluator did not finish within its time limit");
      output.completeOnTimeout(late, milliseconds(task.getTimeout()), TimeUnit.MILLISECONDS);
    }
    output.whenComplete((done, problem) -> {
      activeTasks.decrementAndGet();
      running.cancel(true);
    });
    return output;
  }

  /** An output, or an error in place of one that is too large: that would end the stream, and all other tasks. */
  private static EvaluationOutput sendable(EvaluationOutput output) {
    int size = output.getSerializedSize();
    if (size <= MAX_OUTPUT_BYTES) {
      return output;
    }
    return errored("CONTRACT_VIOLATION", "output: got %d bytes, wanted at most %d".formatted(size, MAX_OUTPUT_BYTES));
  }

  private static final EvaluationOutput CANCELLED = errored("CANCELLED", "the task was cancelled");

  /** The listening side of the contract. */
  private final class Service extends EvaluatorPluginServiceGrpc.EvaluatorPluginServiceImplBase {
    @Override
    public void describe(DescribeRequest request, StreamObserver<DescribeResponse> reply) {
      reply.onNext(DescribeResponse.newBuilder().setPlugin(info).build());
      reply.onCompleted();
    }

    @Override
    public void evaluate(EvaluateRequest request, StreamObserver<EvaluateResponse> reply) {
      CompletableFuture<EvaluationOutput> output = work(request.getTask());
      ((ServerCallStreamObserver<EvaluateResponse>) reply).setOnCancelHandler(() -> output.complete(CANCELLED));
      output.thenAccept(done -> {
        reply.onNext(EvaluateResponse.newBuilder().setOutput(done).build());
        reply.onCompleted();
      });
    }
  }

  /**
   * Where a plugin that listens registers. target: how that server reaches it, when not by the address itself.
   * tlsProfile: with which of the TLS profiles in its configuration, or "".
   */
  public record Registration(String server, Optional<String> target, String tlsProfile) {}

  /** Serves on an address until SIGTERM, then finishes the open tasks. It may register at a server, too. */
  public void listen(String address, Optional<Registration> registration)
      throws IOException, InterruptedException, Revoked {
    int colon = address.lastIndexOf(':');
    String host = address.substring(0, colon);
    HealthStatusManager health = new HealthStatusManager();
    health.setStatus(EvaluatorPluginServiceGrpc.SERVICE_NAME, ServingStatus.SERVING);
    Server grpc =
        NettyServerBuilder.forAddress(
                new InetSocketAddress(host, Integer.parseInt(address.substring(colon + 1))), Access.ofListener())
            .maxInboundMessageSize(MAX_MESSAGE_BYTES)
            // Java's default takes pings more often than every five minutes for an attack.
            .permitKeepAliveTime(5, TimeUnit.SECONDS)
            .permitKeepAliveWithoutCalls(true)
            .addService(new Service())
            .addService(health.getHealthService())
            .build()
            .start();
    String bound = host + ":" + grpc.getPort();
    System.out.println(info.getName() + " listens on " + bound);
    try {
      if (registration.isPresent()) {
        stayRegistered(registration.get(), bound);
      } else {
        stop.join();
      }
    } finally {
      health.enterTerminalState(); // NOT_SERVING, so that nobody sends more
      grpc.shutdown();
      if (!grpc.awaitTermination(GRACE_MS, TimeUnit.MILLISECONDS)) {
        grpc.shutdownNow();
      }
    }
  }

  /** Holds a lease until SIGTERM, then gives it back. Throws when the first try is refused for good, or Revoked. */
  private void stayRegistered(Registration registration, String bound) throws Revoked {
    ManagedChannel channel = dial(registration.server());
    String target = registration.target().orElse(bound);
    RegisterRequest request =
        RegisterRequest.newBuilder()
            .setPlugin(info)
            .setInstanceId(UUID.randomUUID().toString())
            .setTarget(target)
            .setTlsProfile(registration.tlsProfile())
            .setTtl(Duration.newBuilder().setSeconds(15))
            .build();
    boolean registered = false;
    try {
      for (int attempt = 0; !stop.isDone(); attempt++) {
        long began = System.nanoTime();
        channel.resetConnectBackoff(); // Java's own grows to two minutes
        try {
          RegisterResponse lease = registry(channel).register(request);
          registered = true;
          log("registered at %s as %s", registration.server(), target);
          renew(channel, lease);
        } catch (StatusRuntimeException problem) {
          if (!registered && FINAL.contains(problem.getStatus().getCode())) {
            throw problem;
          }
          log("registering again: %s", problem.getMessage());
        }
        attempt = since(began) > MAX_BACKOFF_MS ? 0 : attempt;
        pause(backoff(attempt));
      }
    } finally {
      channel.shutdownNow();
    }
  }

  /** Keeps a lease alive until it is no more, or gives it back at SIGTERM. */
  private void renew(ManagedChannel channel, RegisterResponse lease) throws Revoked {
    while (true) {
      pause(Math.max(milliseconds(lease.getRenewInterval()), 100));
      if (stop.isDone()) {
        registry(channel).deregister(DeregisterRequest.newBuilder().setLeaseId(lease.getLeaseId()).setDrain(true).build());
        return;
      }
      RenewLeaseRequest request =
          RenewLeaseRequest.newBuilder().setLeaseId(lease.getLeaseId()).setActiveTasks(activeTasks.get()).build();
      LeaseState state = registry(channel).renewLease(request).getState();
      if (state == LeaseState.LEASE_STATE_REVOKED) {
        throw new Revoked();
      }
      if (state != LeaseState.LEASE_STATE_ACTIVE) {
        log("registering again: the lease has expired");
        return;
      }
    }
  }

  private static RegistryServiceGrpc.RegistryServiceBlockingStub registry(ManagedChannel channel) {
    return RegistryServiceGrpc.newBlockingStub(channel).withDeadlineAfter(5, TimeUnit.SECONDS);
  }

  /**
   * Dials out to evald and works on what it sends, until SIGTERM and until the open tasks are finished. It connects
   * again whenever the connection breaks, and throws only when the first try is refused for good.
   */
  public void connect(String server) {
    ManagedChannel channel = dial(server);
    String instanceId = UUID.randomUUID().toString();
    boolean welcomed = false;
    for (int attempt = 0; !stop.isDone(); attempt++) {
      long began = System.nanoTime();
      channel.resetConnectBackoff(); // Java's own grows to two minutes
      Session session = new Session();
      Status status = session.run(channel, instanceId);
      if (stop.isDone()) {
        break;
      }
      welcomed = welcomed || session.welcomed.isDone();
      if (!welcomed && FINAL.contains(status.getCode())) {
        throw status.asRuntimeException();
      }
      attempt = since(began) > MAX_BACKOFF_MS ? 0 : attempt;
      log("connecting again: %s", status.isOk() ? "the server has ended the session" : status);
      pause(Math.max(session.delayMs, backoff(attempt)));
    }
    channel.shutdownNow();
  }

  /** The same with several servers, each of which may have maxConcurrency tasks open. */
  public void connect(List<String> servers) throws Throwable {
    List<CompletableFuture<Void>> ended =
        servers.stream()
            .map(server -> CompletableFuture.runAsync(() -> connect(server), each -> new Thread(each).start()))
            .map(each -> each.whenComplete((done, problem) -> stop.complete(null)))
            .toList();
    try {
      CompletableFuture.allOf(ended.toArray(CompletableFuture[]::new)).join();
    } catch (CompletionException problem) {
      throw problem.getCause();
    }
  }

  /** One session, from hello to the end of the stream. */
  private final class Session implements StreamObserver<AttachResponse> {
    private final Map<String, CompletableFuture<EvaluationOutput>> open = new HashMap<>();
    private final CompletableFuture<Void> welcomed = new CompletableFuture<>();
    private final CompletableFuture<Status> ended = new CompletableFuture<>();
    private ClientCallStreamObserver<AttachRequest> stream;
    private boolean draining;
    private boolean closed;
    /** How long the server wants to be left alone. */
    private volatile long delayMs;

    Status run(ManagedChannel channel, String instanceId) {
      synchronized (this) {
        stream = (ClientCallStreamObserver<AttachRequest>) RegistryServiceGrpc.newStub(channel).attach(this);
        send(AttachRequest.newBuilder().setHello(
            WorkerHello.newBuilder()
                .setPlugin(info)
                .setInstanceId(instanceId)
                .setInitialCredit(info.getMaxConcurrency())));
      }
      if (!within(10_000, CompletableFuture.anyOf(welcomed, ended, stop))) {
        stream.cancel("no welcome within the time limit", null);
      }
      CompletableFuture.anyOf(ended, stop).join();
      if (!ended.isDone()) {
        drain();
        if (!within(GRACE_MS, ended)) {
          stream.cancel("tasks took too long", null);
        }
      }
      return ended.join();
    }

    private synchronized void drain() {
      send(AttachRequest.newBuilder().setDraining(WorkerDraining.newBuilder().setReason("the plugin is stopping")));
      draining = true;
      closeIfIdle();
    }

    private void complete(String taskId, EvaluationOutput output) {
      send(AttachRequest.newBuilder().setCompleted(
          TaskCompleted.newBuilder().setTaskId(taskId).setOutput(output)));
    }

    private void closeIfIdle() {
      if (draining && open.isEmpty() && !closed && !ended.isDone()) {
        closed = true;
        stream.onCompleted(); // the server ends its side
      }
    }

    private void send(AttachRequest.Builder frame) {
      if (!closed && !ended.isDone()) {
        stream.onNext(frame.build());
      }
    }

    @Override
    public synchronized void onNext(AttachResponse frame) {
      switch (frame.getFrameCase()) {
        case WELCOME -> {
          log("connected: session %s of server %s", frame.getWelcome().getSessionId(), frame.getWelcome().getServerId());
          welcomed.complete(null);
        }
        case TASK -> start(frame.getTask());
        case CANCEL_TASK_ID -> {
          CompletableFuture<EvaluationOutput> output = open.get(frame.getCancelTaskId());
          if (output != null) {
            output.complete(CANCELLED); // this output still goes out: that gives the credit back
          }
        }
        case PING -> send(AttachRequest.newBuilder().setPong(
            Pong.newBuilder().setNonce(frame.getPing().getNonce()).setActiveTasks(open.size())));
        case DRAINING -> {
          draining = true;
          delayMs = milliseconds(frame.getDraining().getReconnectDelay());
          closeIfIdle();
        }
        case FRAME_NOT_SET -> { } // a case that this version does not know
      }
    }

    private void start(EvaluationTask task) {
      if (open.containsKey(task.getTaskId())) {
        return;
      }
      CompletableFuture<EvaluationOutput> output = work(task);
      open.put(task.getTaskId(), output);
      output.thenAccept(done -> {
        synchronized (this) {
          open.remove(task.getTaskId());
          complete(task.getTaskId(), done);
          closeIfIdle();
        }
      });
    }

    @Override
    public void onError(Throwable problem) {
      end(Status.fromThrowable(problem));
    }

    @Override
    public void onCompleted() {
      end(Status.OK);
    }

    private synchronized void end(Status status) {
      ended.complete(status);
      List.copyOf(open.values()).forEach(output -> output.complete(CANCELLED));
    }
  }

  private static ManagedChannel dial(String server) {
    return NettyChannelBuilder.forTarget(server, Access.toServer(server))
        .maxInboundMessageSize(MAX_MESSAGE_BYTES)
        // Notices a server that is gone without a word; evald allows a ping every 10 s.
        .keepAliveTime(20, TimeUnit.SECONDS)
        .keepAliveTimeout(5, TimeUnit.SECONDS)
        .build();
  }

  /**
   * The wait before an attempt: it doubles up to 3 s, and half of it is chance, so that many plugins do not come back
   * at one moment.
   */
  private static long backoff(int attempt) {
    long longest = Math.min(MAX_BACKOFF_MS, 100L << Math.min(attempt, 10));
    return longest / 2 + ThreadLocalRandom.current().nextLong(longest / 2);
  }

  private void pause(long ms) {
    within(ms, stop);
  }

  private static boolean within(long ms, CompletableFuture<?> future) {
    try {
      future.get(ms, TimeUnit.MILLISECONDS);
      return true;
    } catch (TimeoutException late) {
      return false;
    } catch (Exception problem) { // none of these futures fails
      throw new IllegalStateException(problem);
    }
  }

  private static long since(long began) {
    return TimeUnit.NANOSECONDS.toMillis(System.nanoTime() - began);
  }

  private static long milliseconds(Duration duration) {
    return duration.getSeconds() * 1000 + duration.getNanos() / 1_000_000;
  }

  private static void log(String format, Object... values) {
    System.err.println(format.formatted(values));
  }

  /** Output of a task without a verdict. code: one of the list in evald's protos/README.md. */
  public static EvaluationOutput errored(String code, String message) {
    return EvaluationOutput.newBuilder()
        .setVerdict(Verdict.VERDICT_ERROR)
        .setError(EvaluationError.newBuilder().setCode(code).setMessage(message))
        .build();
  }

  /** Output of a metric. */
  public static EvaluationOutput measured(double value, String reason) {
    return EvaluationOutput.newBuilder().setVerdict(Verdict.VERDICT_PASSED).setValue(value).setReason(reason).build();
  }

  /** Output of a metric that lacks the data to measure: 0, which then counts nowhere. */
  public static EvaluationOutput unavailable(String reason) {
    Value no = Value.newBuilder().setBoolValue(false).build();
    return measured(0, reason).toBuilder().setMetadata(Struct.newBuilder().putFields("available", no)).build();
  }

  /** Output of an assertion that holds. score: from 0 to 1. */
  public static EvaluationOutput passed(double score, String reason) {
    return EvaluationOutput.newBuilder().setVerdict(Verdict.VERDICT_PASSED).setScore(score).setReason(reason).build();
  }

  /** Output of an assertion that does not hold. score: from 0 to 1. */
  public static EvaluationOutput failed(double score, String reason) {
    return EvaluationOutput.newBuilder().setVerdict(Verdict.VERDICT_FAILED).setScore(score).setReason(reason).build();
  }

  /**
   * Runs the plugin as its command line says, until SIGTERM or SIGINT: {@code --connect SERVER}, once or more, or
   * {@code [--listen ADDRESS] [--register SERVER [--target TARGET] [--tls-profile NAME]]}. Does not return.
   */
  public void main(String[] args) {
    Map<String, String> options = new HashMap<>();
    List<String> servers = new ArrayList<>();
    for (int i = 0; i < args.length; i += 2) {
      if (!OPTIONS.contains(args[i]) || i + 1 == args.length) {
        log("usage: [--connect HOST:PORT ... | --listen HOST:PORT"
            + " [--register HOST:PORT [--target TARGET] [--tls-profile NAME]]]");
        System.exit(2);
      }
      options.put(args[i], args[i + 1]);
      if (args[i].equals("--connect")) {
        servers.add(args[i + 1]);
      }
    }
    // A JVM ends with 143 on SIGTERM, however orderly it stops, unless it is halted.
    CompletableFuture<Integer> exit = new CompletableFuture<>();
    Runtime.getRuntime().addShutdownHook(new Thread(() -> {
      stop.complete(null);
      Runtime.getRuntime().halt(exit.join());
    }));
    exit.complete(exitCode(() -> {
      if (!servers.isEmpty()) {
        connect(servers);
      } else {
        listen(options.getOrDefault("--listen", "127.0.0.1:50061"), Optional.ofNullable(options.get("--register")).map(
            server -> new Registration(
                server, Optional.ofNullable(options.get("--target")), options.getOrDefault("--tls-profile", ""))));
      }
    }));
    System.exit(0); // the hook above says with what
  }

  private interface Body {
    void run() throws Throwable;
  }

  private static int exitCode(Body body) {
    try {
      body.run();
      return 0;
    } catch (Revoked problem) {
      log("%s", problem.getMessage());
      return 0; // no failure: whoever starts failed programs again should not start this one
    } catch (Throwable problem) {
      log("%s", problem.getMessage());
      return 1;
    }
  }
}
