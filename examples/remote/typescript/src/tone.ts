// A plugin of evald that looks at the tone of answers: phrases that your agent must not use, and how often
// it shouts.

import { phrasesIn } from './phrases';
import { type Evaluator, failed, main, measured, passed, unavailable } from './plugin';
import { answer } from './turn';

const NO_ANSWER = 'No assistant message found';

const tone: Evaluator = {
  type: {
    type: 'acme.tone',
    version: '1.0.0',
    label: 'Tone',
    description: 'The answer uses none of the forbidden phrases.',
    kind: 'EVALUATOR_KIND_ASSERTION',
    deterministic: true,
    configSchemaJson: JSON.stringify({
      $schema: 'https://json-schema.org/draft/2020-12/schema',
      type: 'object',
      properties: {
        forbidden: {
          type: 'array',
          items: { type: 'string', minLength: 1 },
          minItems: 1,
          description: 'Phrases, found as whole words in any case.',
        },
      },
      required: ['forbidden'],
      additionalProperties: false,
    }),
  },
  evaluate(turn, config) {
    const text = answer(turn);
    if (text === undefined) return failed(0, NO_ANSWER);
    const forbidden = config['forbidden'] as string[];
    const found = phrasesIn(text, forbidden);
    const score = 1 - found.length / forbidden.length;
    const checks = forbidden.map((phrase) => ({ text: `does not say "${phrase}"`, met: !found.includes(phrase) }));
    if (found.length === 0) return { ...passed(1, `None of ${forbidden.length} forbidden phrase(s) found`), checks };
    const said = found.map((phrase) => `"${phrase}"`).join(', ');
    return { ...failed(score, `${found.length} of ${forbidden.length} forbidden phrase(s) found: ${said}`), checks };
  },
};

const exclamations: Evaluator = {
  type: {
    type: 'acme.exclamations',
    version: '1.0.0',
    label: 'Exclamations',
    description: 'How many exclamation marks the answer holds.',
    kind: 'EVALUATOR_KIND_METRIC',
    deterministic: true,
    configSchemaJson: JSON.stringify({ type: 'object', additionalProperties: false }),
    metric: { unit: 'count', higherIsBetter: false, minimum: 0 },
  },
  evaluate(turn) {
    const text = answer(turn);
    if (text === undefined) return unavailable(NO_ANSWER);
    const count = text.match(/[!！]/g)?.length ?? 0;
    return measured(count, `${count} exclamation mark(s)`);
  },
};

void main({ name: 'acme.tone', version: '1.0.0', evaluators: [tone, exclamations], maxConcurrency: 16 });
