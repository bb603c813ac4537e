// Package plugin serves Go functions to evald as evaluators.
//
// One program does it either way: it listens and evald dials it (Listen), or
// it dials out to evald (Attach). Copy this package together with access/ and gen/.
package plugin

import (
	"bytes"
	"context"
	crand "crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"math/rand/v2"
	"net"
	"strings"
	"sync/atomic"
	"time"

	"example.com/evald/access"
	pluginv1 "example.com/evald/gen/evald/plugin/v1"
	evaldv1 "example.com/evald/gen/evald/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/health"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/structpb"
)

const (
	contractVersion = "evald.plugin.v1"
	// The largest output that a server accepts.
	maxOutputBytes = 1 << 20
	// evald's own limit is 16 MiB unless its operator raises it.
	maxMessageBytes = 64 << 20
	// How long open tasks may still take after SIGTERM; Kubernetes kills after 30 s.
	grace      = 10 * time.Second
	maxBackoff = 3 * time.Second
)

// Evaluator is one type of evaluator; Define makes it.
type Evaluator struct {
	Type     *evaldv1.EvaluatorType
	evaluate func(context.Context, *pluginv1.EvaluationTask) (*pluginv1.EvaluationOutput, error)
}

// Define makes an evaluator out of a function. Its config is decoded into a C
// as JSON. The function is called many times at once; its context ends when
// the task is cancelled or its time is over. It must give the same answer to a
// task that is sent again.
func Define[C any](
	describe *evaldv1.EvaluatorType,
	evaluate func(context.Context, *evaldv1.EvaluatorContext, C) (*pluginv1.EvaluationOutput, error),
) Evaluator {
	return Evaluator{describe, func(ctx context.Context, task *pluginv1.EvaluationTask) (*pluginv1.EvaluationOutput, error) {
		var config C
		data, err := json.Marshal(task.GetConfig().AsMap())
		if err != nil {
			return nil, err
		}
		decoder := json.NewDecoder(bytes.NewReader(data))
		decoder.DisallowUnknownFields()
		if err := decoder.Decode(&config); err != nil {
			return Errored("INVALID_CONFIG", "config: "+err.Error()), nil
		}
		return evaluate(ctx, task.GetContext(), config)
	}}
}

// Plugin is a process that offers evaluators.
type Plugin struct {
	Name, Version string
	Evaluators    []Evaluator
	// Tasks that evald may have open here at a time.
	MaxConcurrency int32

	active atomic.Int32
}

func (p *Plugin) info() *pluginv1.PluginInfo {
	info := &pluginv1.PluginInfo{
		Name:             p.Name,
		Version:          p.Version,
		ContractVersions: []string{contractVersion},
		MaxConcurrency:   p.MaxConcurrency,
		Capabilities:     []pluginv1.Capability{pluginv1.Capability_CAPABILITY_CANCEL},
		Sdk:              "go/example",
	}
	for _, evaluator := range p.Evaluators {
		info.EvaluatorTypes = append(info.EvaluatorTypes, evaluator.Type)
	}
	return info
}

func (p *Plugin) find(task *pluginv1.EvaluationTask) (Evaluator, bool) {
	for _, evaluator := range p.Evaluators {
		version := task.GetVersion()
		if evaluator.Type.GetType() == task.GetType() && (version == "" || version == evaluator.Type.GetVersion()) {
			return evaluator, true
		}
	}
	return Evaluator{}, false
}

// work gives a task's output: that of the evaluator, or an error in its place.
func (p *Plugin) work(ctx context.Context, task *pluginv1.EvaluationTask) *pluginv1.EvaluationOutput {
	evaluator, found := p.find(task)
	if !found {
		var offered []string
		for _, evaluator := range p.Evaluators {
			offered = append(offered, evaluator.Type.GetType()+" "+evaluator.Type.GetVersion())
		}
		got := strings.TrimSpace(task.GetType() + " " + task.GetVersion())
		return Errored("UNKNOWN_TYPE", fmt.Sprintf("%q is not offered by this worker, which offers %s", got, strings.Join(offered, ", ")))
	}
	if timeout := task.GetTimeout(); timeout != nil {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, timeout.AsDuration())
		defer cancel()
	}
	p.active.Add(1)
	done := make(chan *pluginv1.EvaluationOutput, 1)
	go func() {
		defer p.active.Add(-1)
		defer func() {
			if problem := recover(); problem != nil {
				log.Printf("%s: task %s: panic: %v", task.GetType(), task.GetTaskId(), problem)
				done <- Errored("EVALUATOR_EXCEPTION", "the evaluator raised an exception; its log has the details")
			}
		}()
		output, err := evaluator.evaluate(ctx, task)
		if err != nil {
			log.Printf("%s: task %s: %v", task.GetType(), task.GetTaskId(), err)
			output = Errored("EVALUATOR_EXCEPTION", "the evaluator raised an exception; its log has the details")
		}
		done <- sendable(output)
	}()
	select {
	case output := <-done:
		return output
	case <-ctx.Done():
		if errors.Is(ctx.Err(), context.DeadlineExceeded) {
			return Errored("TIMEOUT", "the evaluator did not finish within its time limit")
		}
		return Errored("CANCELLED", "the task was cancelled")
	}
}

// sendable gives an output, or an error in place of one that gRPC cannot send:
// that would end the stream, and with it all other tasks.
func sendable(output *pluginv1.EvaluationOutput) *pluginv1.EvaluationOutput {
	data, err := proto.Marshal(output)
	switch {
	case err != nil:
		return Errored("CONTRACT_VIOLATION", fmt.Sprintf("output: %v", err))
	case len(data) > maxOutputBytes:
		return Errored("CONTRACT_VIOLATION", fmt.Sprintf("output: got %d bytes, wanted at most %d", len(data), maxOutputBytes))
	}
	return output
}

// service is the listening side of the contract.
type service struct {
	pluginv1.UnimplementedEvaluatorPluginServiceServer
	plugin *Plugin
}

func (s service) Describe(context.Context, *pluginv1.DescribeRequest) (*pluginv1.DescribeResponse, error) {
	return &pluginv1.DescribeResponse{Plugin: s.plugin.info()}, nil
}

func (s service) Evaluate(ctx context.Context, request *pluginv1.EvaluateRequest) (*pluginv1.EvaluateResponse, error) {
	return &pluginv1.EvaluateResponse{Output: s.plugin.work(ctx, request.GetTask())}, nil
}

// Registration says where a plugin that listens registers. Target: how that
// server reaches it, when not by the address itself. TLSProfile: with which of
// the TLS profiles in its configuration.
type Registration struct{ Server, Target, TLSProfile string }

// Listen serves on an address until ctx ends, then finishes the open tasks.
// With a server it also registers there.
func (p *Plugin) Listen(ctx context.Context, address string, at Registration) error {
	options, err := access.ServerOptions()
	if err != nil {
		return err
	}
	listener, err := net.Listen("tcp", address)
	if err != nil {
		return err
	}
	fmt.Printf("%s listens on %s\n", p.Name, listener.Addr())
	grpcServer := grpc.NewServer(append(
		options,
		grpc.MaxRecvMsgSize(maxMessageBytes),
		// Go's default takes pings more often than every five minutes for an attack.
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: 5 * time.Second, PermitWithoutStream: true}),
	)...)
	pluginv1.RegisterEvaluatorPluginServiceServer(grpcServer, service{plugin: p})
	healthServer := health.NewServer()
	healthServer.SetServingStatus(pluginv1.EvaluatorPluginService_ServiceDesc.ServiceName, healthv1.HealthCheckResponse_SERVING)
	healthv1.RegisterHealthServer(grpcServer, healthServer)

	ended := make(chan error, 2)
	go func() { ended <- grpcServer.Serve(listener) }()
	registered := make(chan struct{})
	close(registered)
	stop, cancel := context.WithCancel(ctx)
	defer cancel()
	if at.Server != "" {
		if at.Target == "" {
			at.Target = listener.Addr().String()
		}
		registered = make(chan struct{})
		go func() {
			defer close(registered)
			if err := p.stayRegistered(stop, at); err != nil {
				ended <- err
			}
		}()
	}
	select {
	case err = <-ended:
		cancel()
	case <-ctx.Done():
	}
	healthServer.Shutdown() // NOT_SERVING, so that nobody sends more
	<-registered            // deregistered by then
	timer := time.AfterFunc(grace, grpcServer.Stop)
	defer timer.Stop()
	grpcServer.GracefulStop()
	return err
}

// stayRegistered holds a lease until ctx ends, then gives it back. It ends
// before that only when the first try is refused for good, or on ErrRevoked.
func (p *Plugin) stayRegistered(ctx context.Context, at Registration) error {
	connection, err := dial(at.Server)
	if err != nil {
		return err
	}
	defer connection.Close()
	registry := pluginv1.NewRegistryServiceClient(connection)
	request := &pluginv1.RegisterRequest{
		Plugin:     p.info(),
		InstanceId: newID(),
		Target:     at.Target,
		TlsProfile: at.TLSProfile,
		Ttl:        durationpb.New(15 * time.Second),
	}
	registered := false
	for attempt := 0; ctx.Err() == nil; attempt++ {
		began := time.Now()
		var lease *pluginv1.RegisterResponse
		err := within(ctx, 5*time.Second, func(ctx context.Context) (err error) {
			lease, err = registry.Register(ctx, request)
			return err
		})
		if err == nil {
			registered = true
			log.Printf("registered at %s as %s", at.Server, at.Target)
			var state pluginv1.LeaseState
			state, err = p.renew(ctx, registry, lease)
			if ctx.Err() != nil {
				return within(context.Background(), 2*time.Second, func(ctx context.Context) error {
					_, err := registry.Deregister(ctx, &pluginv1.DeregisterRequest{LeaseId: lease.GetLeaseId(), Drain: true})
					return err
				})
			}
			if state == pluginv1.LeaseState_LEASE_STATE_REVOKED {
				return ErrRevoked
			}
			if err == nil {
				err = errors.New("the lease has expired")
			}
		}
		if isFinal(err) && !registered {
			return err
		}
		if time.Since(began) > maxBackoff {
			attempt = 0
		}
		log.Printf("registering again: %v", err)
		pause(ctx, backoffDelay(attempt))
	}
	return nil
}

// renew keeps a lease alive until it is no more, and says what it is then.
func (p *Plugin) renew(
	ctx context.Context, registry pluginv1.RegistryServiceClient, lease *pluginv1.RegisterResponse,
) (pluginv1.LeaseState, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := registry.KeepAlive(ctx)
	if err != nil {
		return 0, err
	}
	interval := max(lease.GetRenewInterval().AsDuration(), 100*time.Millisecond)
	go func() {
		for ctx.Err() == nil {
			request := &pluginv1.KeepAliveRequest{LeaseId: lease.GetLeaseId(), ActiveTasks: p.active.Load()}
			if stream.Send(request) != nil {
				return // Recv tells why
			}
			pause(ctx, interval)
		}
	}()
	for {
		answer, err := stream.Recv()
		if err != nil {
			return 0, err
		}
		if state := answer.GetState(); state != pluginv1.LeaseState_LEASE_STATE_ACTIVE {
			return state, nil
		}
	}
}

// Connect dials out to each of the servers and works on what they send, until
// ctx ends and the open tasks are finished. It connects again whenever a
// connection breaks, and ends before that only when a first try is refused for
// good. Each server may have MaxConcurrency tasks open.
func (p *Plugin) Connect(ctx context.Context, servers ...string) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	ended := make(chan error)
	for _, server := range servers {
		go func() { ended <- p.connect(ctx, server) }()
	}
	var refused error
	for range servers {
		if err := <-ended; err != nil && refused == nil {
			refused = err
			stop()
		}
	}
	return refused
}

func (p *Plugin) connect(ctx context.Context, server string) error {
	connection, err := dial(server)
	if err != nil {
		return err
	}
	defer connection.Close()
	worker := &session{plugin: p, registry: pluginv1.NewRegistryServiceClient(connection), instanceID: newID()}
	for attempt := 0; ctx.Err() == nil; attempt++ {
		began := time.Now()
		delay, err := worker.run(ctx)
		if ctx.Err() != nil {
			break
		}
		if isFinal(err) && !worker.welcomed {
			return err
		}
		if time.Since(began) > maxBackoff {
			attempt = 0
		}
		log.Printf("connecting again: %v", err)
		pause(ctx, max(delay, backoffDelay(attempt)))
	}
	return nil
}

type session struct {
	plugin     *Plugin
	registry   pluginv1.RegistryServiceClient
	instanceID string
	// Whether a server has accepted the plugin before.
	welcomed bool
}

// run is one session, from hello to the end of the stream. delay: how long the
// server wants to be left alone.
func (s *session) run(stop context.Context) (delay time.Duration, err error) {
	// Not below stop: the stream outlives it, for the open tasks.
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	opening := time.AfterFunc(10*time.Second, cancel)
	defer opening.Stop()
	defer context.AfterFunc(stop, func() { time.AfterFunc(grace, cancel) })()
	stream, err := s.registry.Attach(ctx)
	if err != nil {
		return 0, err
	}
	err = stream.Send(&pluginv1.AttachRequest{Frame: &pluginv1.AttachRequest_Hello{Hello: &pluginv1.WorkerHello{
		Plugin:        s.plugin.info(),
		InstanceId:    s.instanceID,
		InitialCredit: s.plugin.MaxConcurrency,
	}}})
	if err != nil && !errors.Is(err, io.EOF) { // EOF: the server has refused; Recv tells why
		return 0, err
	}

	frames := make(chan *pluginv1.AttachResponse)
	ended := make(chan error, 1)
	go func() {
		for {
			frame, err := stream.Recv()
			if err != nil {
				ended <- err
				return
			}
			select {
			case frames <- frame:
			case <-ctx.Done():
			}
		}
	}()
	// This goroutine alone sends, and alone knows which tasks are open.
	open := map[string]context.CancelFunc{}
	completed := make(chan *pluginv1.TaskCompleted)
	stopping := stop.Done()
	draining := false
	for {
		if draining && len(open) == 0 {
			_ = stream.CloseSend() // the server ends the stream
		}
		select {
		case err := <-ended:
			if errors.Is(err, io.EOF) {
				err = errors.New("the server has ended the session")
			}
			return delay, err

		case <-stopping:
			stopping, draining = nil, true
			_ = stream.Send(&pluginv1.AttachRequest{Frame: &pluginv1.AttachRequest_Draining{
				Draining: &pluginv1.WorkerDraining{Reason: "the plugin is stopping"},
			}})

		case done := <-completed:
			delete(open, done.GetTaskId())
			_ = stream.Send(&pluginv1.AttachRequest{Frame: &pluginv1.AttachRequest_Completed{Completed: done}})

		case frame := <-frames:
			switch frame := frame.GetFrame().(type) {
			case *pluginv1.AttachResponse_Welcome:
				opening.Stop()
				s.welcomed = true
				log.Printf("connected: session %s of server %s", frame.Welcome.GetSessionId(), frame.Welcome.GetServerId())
			case *pluginv1.AttachResponse_Task:
				task := frame.Task
				if _, running := open[task.GetTaskId()]; running {
					continue
				}
				taskCtx, cancelTask := context.WithCancel(ctx)
				open[task.GetTaskId()] = cancelTask
				go func() {
					defer cancelTask()
					done := &pluginv1.TaskCompleted{TaskId: task.GetTaskId(), Output: s.plugin.work(taskCtx, task)}
					select {
					case completed <- done:
					case <-ctx.Done():
					}
				}()
			case *pluginv1.AttachResponse_CancelTaskId:
				if cancelTask, running := open[frame.CancelTaskId]; running {
					cancelTask() // its output still goes out: that gives the credit back
				}
			case *pluginv1.AttachResponse_Ping:
				_ = stream.Send(&pluginv1.AttachRequest{Frame: &pluginv1.AttachRequest_Pong{
					Pong: &pluginv1.Pong{Nonce: frame.Ping.GetNonce(), ActiveTasks: int32(len(open))},
				}})
			case *pluginv1.AttachResponse_Draining:
				draining, delay = true, frame.Draining.GetReconnectDelay().AsDuration()
			}
		}
	}
}

// ErrRevoked says that the operator has removed the plugin.
var ErrRevoked = errors.New("the operator of the server has removed this plugin")

// isFinal tells whether trying the same again is of no use. Only for the first
// try: later refusals come and go with the server's configuration.
func isFinal(err error) bool {
	switch status.Code(err) {
	case codes.InvalidArgument, codes.AlreadyExists, codes.PermissionDenied,
		codes.FailedPrecondition, codes.Unauthenticated, codes.Unimplemented:
		return true
	}
	return false
}

func dial(server string) (*grpc.ClientConn, error) {
	options, err := access.DialOptions(server)
	if err != nil {
		return nil, err
	}
	return grpc.NewClient(server, append(
		options,
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxMessageBytes)),
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: 100 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: time.Second},
			MinConnectTimeout: 3 * time.Second,
		}),
		// Notices a server that is gone without a word; evald allows a ping every 10 s.
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: 20 * time.Second, Timeout: 5 * time.Second}),
	)...)
}

// backoffDelay is the wait before an attempt: it doubles up to 3 s, and half of
// it is chance, so that many workers do not come back at one moment.
func backoffDelay(attempt int) time.Duration {
	longest := min(maxBackoff, 100*time.Millisecond<<min(attempt, 10))
	return longest/2 + rand.N(longest/2)
}

func pause(ctx context.Context, delay time.Duration) {
	select {
	case <-time.After(delay):
	case <-ctx.Done():
	}
}

func within(ctx context.Context, timeout time.Duration, call func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	return call(ctx)
}

// Errored is the output of a task without a verdict. code: one of the list in
// protos/README.md of evald.
func Errored(code, message string) *pluginv1.EvaluationOutput {
	return &pluginv1.EvaluationOutput{
		Verdict: evaldv1.Verdict_VERDICT_ERROR,
		Error:   &evaldv1.EvaluationError{Code: code, Message: message},
	}
}

// Measured is the output of a metric.
func Measured(value float64, reason string) *pluginv1.EvaluationOutput {
	return &pluginv1.EvaluationOutput{Verdict: evaldv1.Verdict_VERDICT_PASSED, Value: proto.Float64(value), Reason: reason}
}

// Unavailable is the output of a metric that lacks the data to measure: 0, which
// then counts nowhere.
func Unavailable(reason string) *pluginv1.EvaluationOutput {
	output := Measured(0, reason)
	output.Metadata = &structpb.Struct{Fields: map[string]*structpb.Value{"available": structpb.NewBoolValue(false)}}
	return output
}

// Passed is the output of an assertion that holds. score: from 0 to 1.
func Passed(score float64, reason string) *pluginv1.EvaluationOutput {
	return &pluginv1.EvaluationOutput{Verdict: evaldv1.Verdict_VERDICT_PASSED, Score: proto.Float64(score), Reason: reason}
}

// Failed is the output of an assertion that does not hold. score: from 0 to 1.
func Failed(score float64, reason string) *pluginv1.EvaluationOutput {
	return &pluginv1.EvaluationOutput{Verdict: evaldv1.Verdict_VERDICT_FAILED, Score: proto.Float64(score), Reason: reason}
}

func newID() string { return crand.Text() }
