// caller has evald evaluate one turn, with a tool call in it, and prints the
// results as they come.
//
//	caller [HOST:PORT] [TYPE[=CONFIG as JSON]]...
//
// Ends with 0 when the turn passed, 1 when it did not, 2 when evald could not
// evaluate it.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"example.com/evald/access"
	evaldv1 "example.com/evald/gen/evald/v1"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/structpb"
)

func main() {
	server, evaluators := "127.0.0.1:50051", []string{
		`tool-use={"expectations": [{"name": "book_flight", "minCalls": 1}]}`,
		`regex={"pattern": "BK-[0-9]{5}"}`,
	}
	if len(os.Args) > 1 {
		server = os.Args[1]
	}
	if len(os.Args) > 2 {
		evaluators = os.Args[2:]
	}
	passed, err := evaluate(server, evaluators)
	switch {
	case err != nil:
		explain(err)
		os.Exit(2)
	case !passed:
		os.Exit(1)
	}
}

func evaluate(server string, evaluators []string) (bool, error) {
	options, err := access.DialOptions(server)
	if err != nil {
		return false, err
	}
	connection, err := grpc.NewClient(server, options...)
	if err != nil {
		return false, err
	}
	defer connection.Close()
	specs, err := readSpecs(evaluators)
	if err != nil {
		return false, err
	}
	// evald ends the evaluation in time for its summary to arrive before the deadline.
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	stream, err := evaldv1.NewEvaluationServiceClient(connection).Evaluate(ctx, &evaldv1.EvaluateRequest{
		Context: &evaldv1.EvaluatorContext{
			Messages: []*evaldv1.ChatMessage{
				text("user", "Book me a flight to Lisbon tomorrow."),
				{Role: "assistant", ToolCalls: []*evaldv1.ToolCall{{
					Id:       "call-1",
					Function: &evaldv1.FunctionCall{Name: "book_flight", Arguments: `{"to": "LIS"}`},
				}}},
				{Role: "tool", ToolCallId: new("call-1"), Content: &evaldv1.ChatMessage_Text{Text: `{"reference": "BK-12345"}`}},
				text("assistant", "You fly at 9:40. Your reference is BK-12345; questions go to help@acme.example."),
			},
			LastInvocation: &evaldv1.Invocation{Latency: durationpb.New(1234 * time.Millisecond)},
		},
		Evaluators: specs,
	})
	if err != nil {
		return false, err
	}
	var summary *evaldv1.AggregatedEvaluation
	for {
		event, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return false, err
		}
		for _, result := range event.GetResults() {
			print(result)
		}
		if event.GetSummary() != nil {
			summary = event.GetSummary()
		}
	}
	if summary == nil {
		return false, errors.New("the stream ended without a summary: the evaluation did not finish")
	}
	fmt.Printf("%s: %s\n", word(summary.GetVerdict()), summary.GetReason())
	// Not "is not FAILED": an evaluation with an error has not passed.
	return summary.GetVerdict() == evaldv1.Verdict_VERDICT_PASSED, nil
}

func text(role, content string) *evaldv1.ChatMessage {
	return &evaldv1.ChatMessage{Role: role, Content: &evaldv1.ChatMessage_Text{Text: content}}
}

func readSpecs(evaluators []string) ([]*evaldv1.EvaluatorSpec, error) {
	var specs []*evaldv1.EvaluatorSpec
	for _, evaluator := range evaluators {
		name, config, _ := strings.Cut(evaluator, "=")
		spec := &evaldv1.EvaluatorSpec{Type: name, Config: &structpb.Struct{}}
		if config != "" {
			if err := protojson.Unmarshal([]byte(config), spec.Config); err != nil {
				return nil, fmt.Errorf("config of %s: %w", name, err)
			}
		}
		specs = append(specs, spec)
	}
	return specs, nil
}

func print(result *evaldv1.EvaluationResult) {
	line := fmt.Sprintf("  %-8s %-16s", word(result.GetVerdict()), result.GetName())
	if result.Score != nil {
		line += fmt.Sprintf(" score %.2f", result.GetScore())
	}
	if result.Value != nil {
		line += fmt.Sprintf(" value %g", result.GetValue())
	}
	if problem := result.GetError(); problem != nil {
		line += fmt.Sprintf(" %s: %s", problem.GetCode(), problem.GetMessage())
	}
	fmt.Println(line, result.GetReason())
}

func word(verdict evaldv1.Verdict) string {
	return strings.TrimPrefix(verdict.String(), "VERDICT_")
}

// explain says why evald did not evaluate: the fields that are wrong, or when to try again.
func explain(err error) {
	problem := status.Convert(err)
	fmt.Fprintf(os.Stderr, "%s: %s\n", problem.Code(), problem.Message())
	for _, detail := range problem.Details() {
		switch detail := detail.(type) {
		case *errdetails.BadRequest:
			for _, field := range detail.GetFieldViolations() {
				fmt.Fprintf(os.Stderr, "  %s: %s\n", field.GetField(), field.GetDescription())
			}
		case *errdetails.RetryInfo:
			fmt.Fprintf(os.Stderr, "  try again in %s\n", detail.GetRetryDelay().AsDuration())
		}
	}
}
