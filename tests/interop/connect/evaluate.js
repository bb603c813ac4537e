// Evaluates one turn with connect-web: node evaluate.js http://HOST:PORT DESCRIPTORS json|binary
//
// The client is made from a file of descriptors. Prints the answer of EvaluateUnary, every message of Evaluate, and
// the error of a call that is refused, as lines of JSON.

import { readFileSync } from 'node:fs';
import { createFileRegistry, fromBinary, fromJson, toJson } from '@bufbuild/protobuf';
import { FileDescriptorSetSchema } from '@bufbuild/protobuf/wkt';
import { Code, ConnectError, createClient } from '@connectrpc/connect';
import { createConnectTransport } from '@connectrpc/connect-web';

const [baseUrl, descriptors, format] = process.argv.slice(2);
const registry = createFileRegistry(fromBinary(FileDescriptorSetSchema, readFileSync(descriptors)));
const service = registry.getService('evald.v1.EvaluationService');
const client = createClient(service, createConnectTransport({ baseUrl, useBinaryFormat: format === 'binary' }));

const { evaluate, evaluateUnary } = service.method;
const turn = (type) => ({
  context: {
    messages: [
      { role: 'user', text: 'Which flight did you book?' },
      { role: 'assistant', text: 'You fly to Lisbon, reference BK-12345.' },
    ],
  },
  evaluators: [{ type, config: { pattern: 'BK-[0-9]{5}' } }],
});
const show = (value) => console.log(JSON.stringify(value));

const answer = await client.evaluateUnary(fromJson(evaluateUnary.input, { request: turn('regex') }));
show(toJson(evaluateUnary.output, answer));
for await (const message of client.evaluate(fromJson(evaluate.input, turn('regex')))) {
  show(toJson(evaluate.output, message));
}
const refused = [
  () => client.evaluateUnary(fromJson(evaluateUnary.input, { request: turn('regx') })),
  async () => {
    for await (const message of client.evaluate(fromJson(evaluate.input, turn('regx')))) show(message);
  },
];
for (const call of refused) {
  try {
    await call();
  } catch (problem) {
    const { code, rawMessage, details } = ConnectError.from(problem);
    show({ code: Code[code], message: rawMessage, details: details.map((detail) => detail.type) });
  }
}
