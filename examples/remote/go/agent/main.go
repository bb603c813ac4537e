// Agent is an agent in Go that evald's connector "grpc" can call: it tells where an order is, with a tool and without a model.
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"log"
	"net"
	"os/signal"
	"regexp"
	"syscall"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	agentv1 "example.com/evald/gen/evald/agent/v1"
	evaldv1 "example.com/evald/gen/evald/v1"
)

var (
	orderNumber = regexp.MustCompile(`\b\d{5}\b`)
	orders      = map[string]string{"10423": "shipped", "10424": "being packed"}
)

type agent struct {
	agentv1.UnimplementedAgentServiceServer
}

// Invoke answers what the user said last.
func (agent) Invoke(_ context.Context, request *agentv1.InvokeRequest) (*agentv1.InvokeResponse, error) {
	said := ""
	for _, message := range request.GetMessages() {
		if message.GetRole() == "user" {
			said = message.GetText()
		}
	}
	if said == "" {
		return nil, status.Error(codes.InvalidArgument, "messages: no text from the user")
	}
	invocation := &evaldv1.Invocation{}
	if number := orderNumber.FindString(said); number == "" {
		invocation.Messages = []*evaldv1.ChatMessage{says("What is the number of your order? It has five digits.")}
	} else {
		invocation.Messages = lookUp(number)
	}
	return &agentv1.InvokeResponse{Invocation: invocation}, nil
}

// lookUp calls the tool, shows the call and its result as messages, and says what came of it.
func lookUp(number string) []*evaldv1.ChatMessage {
	id := "call-" + number
	arguments, _ := json.Marshal(map[string]string{"number": number})
	state, known := orders[number]
	result, _ := json.Marshal(map[string]any{"found": known, "state": state})
	text := fmt.Sprintf("Order %s is %s.", number, state)
	if !known {
		text = fmt.Sprintf("I find no order %s.", number)
	}
	call := &evaldv1.ToolCall{Id: id, Function: &evaldv1.FunctionCall{Name: "look_up_order", Arguments: string(arguments)}}
	return []*evaldv1.ChatMessage{
		{Role: "assistant", ToolCalls: []*evaldv1.ToolCall{call}},
		{Role: "tool", ToolCallId: &id, Content: &evaldv1.ChatMessage_Text{Text: string(result)}},
		says(text),
	}
}

func says(text string) *evaldv1.ChatMessage {
	return &evaldv1.ChatMessage{Role: "assistant", Content: &evaldv1.ChatMessage_Text{Text: text}}
}

func main() {
	listen := flag.String("listen", "127.0.0.1:50072", "`HOST:PORT` to listen on; port 0 picks a free port")
	flag.Parse()
	listener, err := net.Listen("tcp", *listen)
	if err != nil {
		log.Fatal(err)
	}
	server := grpc.NewServer()
	agentv1.RegisterAgentServiceServer(server, agent{})
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	go func() {
		<-ctx.Done()
		server.GracefulStop()
	}()
	fmt.Printf("acme.orders listens on %s\n", listener.Addr())
	if err := server.Serve(listener); err != nil {
		log.Fatal(err)
	}
}
