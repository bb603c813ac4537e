package plugin

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	pluginv1 "example.com/evald/gen/evald/plugin/v1"
	evaldv1 "example.com/evald/gen/evald/v1"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/structpb"
)

type config struct {
	Words []string `json:"words"`
}

type outcome = func(context.Context, config) (*pluginv1.EvaluationOutput, error)

func offering(evaluate outcome) *Plugin {
	evaluator := Define(
		&evaldv1.EvaluatorType{Type: "acme.test", Version: "1.0.0"},
		func(ctx context.Context, _ *evaldv1.EvaluatorContext, c config) (*pluginv1.EvaluationOutput, error) {
			return evaluate(ctx, c)
		},
	)
	return &Plugin{Name: "acme.test", Version: "1.0.0", Evaluators: []Evaluator{evaluator}, MaxConcurrency: 1}
}

func waiting(ctx context.Context, _ config) (*pluginv1.EvaluationOutput, error) {
	<-ctx.Done()
	return nil, ctx.Err()
}

func TestAFaultIsAnErrorAndNeverAVerdict(t *testing.T) {
	cases := map[string]struct {
		evaluate outcome
		task     *pluginv1.EvaluationTask
		want     string // begins with the error's code; may go on with its message
	}{
		"panic": {
			func(context.Context, config) (*pluginv1.EvaluationOutput, error) { panic("no") },
			&pluginv1.EvaluationTask{Type: "acme.test"}, "EVALUATOR_EXCEPTION",
		},
		"error": {
			func(context.Context, config) (*pluginv1.EvaluationOutput, error) { return nil, errors.New("no") },
			&pluginv1.EvaluationTask{Type: "acme.test"}, "EVALUATOR_EXCEPTION",
		},
		"not UTF-8": {
			func(context.Context, config) (*pluginv1.EvaluationOutput, error) { return Passed(1, "\xff"), nil },
			&pluginv1.EvaluationTask{Type: "acme.test"}, "CONTRACT_VIOLATION",
		},
		"too large": {
			func(context.Context, config) (*pluginv1.EvaluationOutput, error) {
				return Passed(1, strings.Repeat("x", 20<<20)), nil
			},
			&pluginv1.EvaluationTask{Type: "acme.test"}, "CONTRACT_VIOLATION: output: got 20971",
		},
		"late": {waiting, &pluginv1.EvaluationTask{Type: "acme.test", Timeout: durationpb.New(time.Millisecond)}, "TIMEOUT"},
		"another type": {
			waiting, &pluginv1.EvaluationTask{Type: "acme.other"},
			`UNKNOWN_TYPE: "acme.other" is not offered by this worker, which offers acme.test 1.0.0`,
		},
		"another version": {
			waiting, &pluginv1.EvaluationTask{Type: "acme.test", Version: "2.0.0"},
			`UNKNOWN_TYPE: "acme.test 2.0.0" is not offered by this worker, which offers acme.test 1.0.0`,
		},
		"config": {
			waiting,
			&pluginv1.EvaluationTask{Type: "acme.test", Config: &structpb.Struct{Fields: map[string]*structpb.Value{"words": structpb.NewNumberValue(1)}}},
			"INVALID_CONFIG",
		},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			output := offering(c.evaluate).work(context.Background(), c.task)
			got := output.GetError().GetCode() + ": " + output.GetError().GetMessage()
			if output.GetVerdict() != evaldv1.Verdict_VERDICT_ERROR || !strings.HasPrefix(got, c.want) {
				t.Errorf("got %v, wanted an error with %s", output, c.want)
			}
		})
	}
}

func TestACancelledTaskEndsAtOnce(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	output := offering(waiting).work(ctx, &pluginv1.EvaluationTask{Type: "acme.test"})
	if output.GetError().GetCode() != "CANCELLED" {
		t.Errorf("got %v, wanted an error with CANCELLED", output)
	}
}

func TestTheWaitGrowsToThreeSecondsAndIsNeverTheSame(t *testing.T) {
	for attempt, longest := range map[int]time.Duration{0: 100 * time.Millisecond, 3: 800 * time.Millisecond, 99: 3 * time.Second} {
		first, second := backoffDelay(attempt), backoffDelay(attempt)
		if first < longest/2 || first > longest || first == second {
			t.Errorf("attempt %d: got %s and %s, wanted two between %s and %s", attempt, first, second, longest/2, longest)
		}
	}
}
