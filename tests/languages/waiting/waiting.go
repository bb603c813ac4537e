// A plugin whose evaluator waits as long as its config says, or raises. Built inside examples/remote/go.
package main

import (
	"context"
	"fmt"
	"time"

	pluginv1 "example.com/evald/gen/evald/plugin/v1"
	evaldv1 "example.com/evald/gen/evald/v1"
	"example.com/evald/plugin"
)

type config struct {
	Seconds float64 `json:"seconds"`
	Raise   bool    `json:"raise"`
}

func main() {
	wait := plugin.Define(
		&evaldv1.EvaluatorType{Type: "test.wait", Version: "1.0.0", Kind: evaldv1.EvaluatorKind_EVALUATOR_KIND_ASSERTION},
		func(ctx context.Context, _ *evaldv1.EvaluatorContext, c config) (*pluginv1.EvaluationOutput, error) {
			if c.Raise {
				panic("a secret")
			}
			fmt.Println("began")
			select {
			case <-time.After(time.Duration(c.Seconds * float64(time.Second))):
				return plugin.Passed(1, "waited"), nil
			case <-ctx.Done():
				fmt.Println("told to stop")
				return nil, ctx.Err()
			}
		},
	)
	waiting := &plugin.Plugin{Name: "test.waiting", Version: "1.0.0", Evaluators: []plugin.Evaluator{wait}, MaxConcurrency: 4}
	waiting.Main()
}
