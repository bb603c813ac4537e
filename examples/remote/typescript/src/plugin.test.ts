import assert from 'node:assert/strict';
import { test } from 'node:test';

import { toStruct } from './contract';
import { phrasesIn } from './phrases';
import { type Evaluator, passed, type Plugin, work } from './plugin';

function offering(evaluate: Evaluator['evaluate']): Plugin {
  const configSchemaJson = '{"type": "object", "properties": {"known": {}}, "additionalProperties": false}';
  const type = { type: 'acme.test', version: '1.0.0', configSchemaJson };
  return { name: 'acme.test', version: '1.0.0', maxConcurrency: 1, evaluators: [{ type, evaluate }] };
}

const waiting: Evaluator['evaluate'] = () => new Promise(() => undefined);
const raising: Evaluator['evaluate'] = () => {
  throw new Error('no');
};

for (const [name, evaluate, task, code] of [
  ['raised', raising, { type: 'acme.test' }, 'EVALUATOR_EXCEPTION'],
  ['rejected', async () => raising({}, {}, AbortSignal.abort()), { type: 'acme.test' }, 'EVALUATOR_EXCEPTION'],
  ['late', waiting, { type: 'acme.test', timeout: { seconds: '0', nanos: 1_000_000 } }, 'TIMEOUT'],
  ['no message', () => 'passed' as never, { type: 'acme.test' }, 'CONTRACT_VIOLATION'],
  ['too large', () => passed(1, 'x'.repeat(20 << 20)), { type: 'acme.test' }, 'CONTRACT_VIOLATION: output: got 20971'],
  ['another type', waiting, { type: 'acme.other' }, 'UNKNOWN_TYPE: "acme.other" is not offered'],
  ['another version', waiting, { type: 'acme.test', version: '2.0.0' }, 'UNKNOWN_TYPE: "acme.test 2.0.0" is'],
  ['config', waiting, { type: 'acme.test', config: toStruct({ known: 1, other: 2 }) }, 'INVALID_CONFIG'],
] as const) {
  // code: of the error, perhaps with the start of its message.
  test(`a fault is an error and never a verdict: ${name}`, async () => {
    const output = await work(offering(evaluate), task as Parameters<typeof work>[1], new AbortController());
    assert.equal(output.verdict, 'VERDICT_ERROR');
    assert.ok(`${output.error?.code}: ${output.error?.message}`.startsWith(code), output.error?.message);
  });
}

test('a cancelled task ends at once, and its evaluator is told', async () => {
  const control = new AbortController();
  let told: AbortSignal | undefined;
  const evaluate: Evaluator['evaluate'] = (_turn, _config, signal) => {
    told = signal;
    return new Promise(() => undefined);
  };
  const output = work(offering(evaluate), { type: 'acme.test' }, control);
  control.abort('CANCELLED');
  assert.equal((await output).error?.code, 'CANCELLED');
  assert.ok(told?.aborted);
});

for (const [text, phrase, found] of [
  ['Please CALM down.', 'calm down', true],
  ['Calm downwards', 'calm down', false],
  ['ΓΕΙΑ ΣΟΥ', 'γεια σου', true],
  ['costs $5 (five)', '$5 (five)', true],
  ['ｆｕｌｌ width', 'full', true],
] as const) {
  test(`"${phrase}" in "${text}": ${found}`, () => assert.deepEqual(phrasesIn(text, [phrase]), found ? [phrase] : []));
}
