// Has evald evaluate one turn, with a tool call in it, and prints the results as they come:
//
//     node dist/caller.js [HOST:PORT] [TYPE[=CONFIG as JSON]]...
//
// Ends with 0 when the turn passed, 1 when it did not, 2 when evald could not evaluate it.

import * as grpc from '@grpc/grpc-js';

import { clientAccess } from './access';
import { evald, google, milliseconds, toDuration, toStruct } from './contract';
import type { AggregatedEvaluation__Output as Summary } from './gen/evald/v1/AggregatedEvaluation';
import type { EvaluateResponse__Output as EvaluateResponse } from './gen/evald/v1/EvaluateResponse';
import type { EvaluationResult__Output as Result } from './gen/evald/v1/EvaluationResult';

const [
  server = '127.0.0.1:50051',
  ...evaluators
] = process.argv.slice(2);
if (evaluators.length === 0) {
  evaluators.push('tool-use={"expectations": [{"name": "book_flight", "minCalls": 1}]}');
  evaluators.push('regex={"pattern": "BK-[0-9]{5}"}');
}

async function evaluate(): Promise<boolean> {
  const client = new evald.v1.EvaluationService(server, ...clientAccess(server));
  try {
    const stream = client.evaluate(
      {
        context: {
          messages: [
            { role: 'user', text: 'Book me a flight to Lisbon tomorrow.' },
            {
              role: 'assistant',
              toolCalls: [{ id: 'call-1', function: { name: 'book_flight', arguments: '{"to": "LIS"}' } }],
            },
            { role: 'tool', toolCallId: 'call-1', text: '{"reference": "BK-12345"}' },
            {
              role: 'assistant',
              text: 'You fly at 9:40. Your reference is BK-12345; questions go to help@acme.example.',
            },
          ],
          lastInvocation: { latency: toDuration(1234) },
        },
        evaluators: evaluators.map(spec),
      },
      // evald ends the evaluation in time for its summary to arrive before the deadline.
      { deadline: Date.now() + 30_000 },
    );
    let summary: Summary | undefined;
    for await (const event of stream as AsyncIterable<EvaluateResponse>) {
      event.results?.forEach(print);
      summary = event.summary ?? summary;
    }
    if (!summary) throw new Error('the stream ended without a summary: the evaluation did not finish');
    console.log(`${word(summary.verdict)}: ${summary.reason}`);
    // Not "is not FAILED": an evaluation with an error has not passed.
    return summary.verdict === 'VERDICT_PASSED';
  } finally {
    client.close();
  }
}

function spec(text: string) {
  const [type, config] = text.split(/=(.*)/s);
  return { type, config: toStruct(config ? JSON.parse(config) : {}) };
}

function print(result: Result): void {
  const words = ['', word(result.verdict).padEnd(8), (result.name ?? '').padEnd(16)];
  if (result.score !== undefined) words.push(`score ${result.score.toFixed(2)}`);
  if (result.value !== undefined) words.push(`value ${result.value}`);
  if (result.error) words.push(`${result.error.code}: ${result.error.message}`);
  console.log(...words, result.reason ?? '');
}

function word(verdict: string | undefined): string {
  return (verdict ?? 'VERDICT_UNSPECIFIED').replace('VERDICT_', '');
}

/** Says why evald did not evaluate: the fields that are wrong, or when to try again. */
function explain(problem: Error & Partial<grpc.ServiceError>): void {
  if (problem.code === undefined) {
    console.error(problem.message);
    return;
  }
  console.error(`${grpc.status[problem.code]}: ${problem.details}`);
  const [bytes] = problem.metadata?.get('grpc-status-details-bin') ?? [];
  if (!(bytes instanceof Buffer)) return;
  const { Status, BadRequest, RetryInfo } = google.rpc;
  for (const detail of Status.deserialize(bytes).details ?? []) {
    const value = Buffer.from(detail.value ?? '');
    if (detail.type_url?.endsWith('/google.rpc.BadRequest')) {
      for (const field of BadRequest.deserialize(value).fieldViolations ?? []) {
        console.error(`  ${field.field}: ${field.description}`);
      }
    } else if (detail.type_url?.endsWith('/google.rpc.RetryInfo')) {
      console.error(`  try again in ${milliseconds(RetryInfo.deserialize(value).retryDelay)} ms`);
    }
  }
}

evaluate().then(
  (passed) => {
    process.exitCode = passed ? 0 : 1;
  },
  (problem) => {
    explain(problem);
    process.exitCode = 2;
  },
);
