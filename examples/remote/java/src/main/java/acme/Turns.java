package acme;

import evald.v1.Context.EvaluatorContext;
import evald.v1.Message.ChatMessage;
import evald.v1.Message.ContentBlock;
import java.util.List;
import java.util.Optional;
import java.util.Set;
import java.util.stream.Collectors;

/** What evald means by the words "turn" and "answer". */
final class Turns {
  private static final Set<String> TEXT_BLOCKS = Set.of("text", "input_text", "output_text", "");

  private Turns() {}

  /** The text of the turn's last assistant message with text after the last user message; empty for none. */
  static Optional<String> answer(EvaluatorContext turn) {
    return afterLastUser(messages(turn)).stream()
        .filter(message -> message.getRole().equals("assistant"))
        .map(Turns::text)
        .filter(text -> !text.isEmpty())
        .reduce((first, second) -> second);
  }

  /** What the agent did last: the messages of its invocation, or those after the last user message. */
  static List<ChatMessage> messages(EvaluatorContext turn) {
    if (turn.getLastInvocation().getMessagesCount() > 0) {
      return turn.getLastInvocation().getMessagesList();
    }
    return afterLastUser(turn.getMessagesList());
  }

  private static List<ChatMessage> afterLastUser(List<ChatMessage> messages) {
    int start = messages.size();
    while (start > 0 && !messages.get(start - 1).getRole().equals("user")) {
      start--;
    }
    return messages.subList(start, messages.size());
  }

  /** A message's text: the string, or its text blocks joined with nothing between. */
  static String text(ChatMessage message) {
    if (!message.hasBlocks()) {
      return message.getText();
    }
    return message.getBlocks().getItemsList().stream()
        .filter(block -> TEXT_BLOCKS.contains(block.getType()))
        .map(ContentBlock::getText)
        .collect(Collectors.joining());
  }
}
