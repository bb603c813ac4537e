// What evald means by the words "turn" and "answer".

import type { ChatMessage__Output as ChatMessage } from './gen/evald/v1/ChatMessage';
import type { EvaluatorContext__Output as EvaluatorContext } from './gen/evald/v1/EvaluatorContext';

export type Turn = EvaluatorContext;

const TEXT_BLOCKS = new Set(['text', 'input_text', 'output_text', '']);

/** The turn's answer: its last assistant message with text after the last user message; undefined for none. */
export function answer(turn: Turn): string | undefined {
  return afterLastUser(turnMessages(turn))
    .filter((message) => message.role === 'assistant')
    .map(text)
    .findLast((each) => each !== '');
}

/** What the agent did last: the messages of its invocation, or those after the last user message. */
export function turnMessages(turn: Turn): ChatMessage[] {
  if (turn.lastInvocation?.messages?.length) return turn.lastInvocation.messages;
  return afterLastUser(turn.messages ?? []);
}

function afterLastUser(messages: ChatMessage[]): ChatMessage[] {
  return messages.slice(messages.findLastIndex((message) => message.role === 'user') + 1);
}

/** A message's text: the string, or its text blocks joined with nothing between. */
export function text(message: ChatMessage): string {
  const blocks = (message.blocks?.items ?? []).filter((block) => TEXT_BLOCKS.has(block.type ?? ''));
  return message.text ?? blocks.map((block) => block.text ?? '').join('');
}
