package plugin

import (
	"strings"

	evaldv1 "example.com/evald/gen/evald/v1"
)

// Answer is the text of the turn's answer: its last assistant message with text
// after the last user message. False: the turn has none.
func Answer(turn *evaldv1.EvaluatorContext) (string, bool) {
	messages := Turn(turn)
	for i := len(messages) - 1; i >= 0 && messages[i].GetRole() != "user"; i-- {
		if text := Text(messages[i]); messages[i].GetRole() == "assistant" && text != "" {
			return text, true
		}
	}
	return "", false
}

// Turn is what the agent did last: the messages of its invocation, or those
// after the last user message.
func Turn(turn *evaldv1.EvaluatorContext) []*evaldv1.ChatMessage {
	if messages := turn.GetLastInvocation().GetMessages(); len(messages) > 0 {
		return messages
	}
	messages := turn.GetMessages()
	for i := len(messages) - 1; i >= 0; i-- {
		if messages[i].GetRole() == "user" {
			return messages[i+1:]
		}
	}
	return messages
}

// Text is a message's text: the string, or its text blocks joined with nothing between.
func Text(message *evaldv1.ChatMessage) string {
	if message.GetBlocks() == nil {
		return message.GetText()
	}
	var text strings.Builder
	for _, block := range message.GetBlocks().GetItems() {
		switch block.GetType() {
		case "text", "input_text", "output_text", "":
			text.WriteString(block.GetText())
		}
	}
	return text.String()
}
