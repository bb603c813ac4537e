// Evaluates one turn from Node.js: node evaluate.js HOST:PORT
//
// The client is made from the .proto files when it starts; nothing is generated. Prints every message of the
// stream as a line of JSON, and ends with 0 when the turn passed, 1 when it did not, 2 when the call failed.

const path = require('node:path');
const grpc = require('@grpc/grpc-js');
const protoLoader = require('@grpc/proto-loader');

const protos = path.join(__dirname, '..', '..', '..', 'protos');
const definition = protoLoader.loadSync('evald/v1/evaluation_service.proto', {
  includeDirs: [protos],
  enums: String,
  longs: Number,
});
const { EvaluationService } = grpc.loadPackageDefinition(definition).evald.v1;

// google.protobuf.Struct, as the loader wants it.
function struct(object) {
  return { fields: Object.fromEntries(Object.entries(object).map(([key, item]) => [key, value(item)])) };
}

function value(item) {
  if (item === null) return { nullValue: 'NULL_VALUE' };
  if (Array.isArray(item)) return { listValue: { values: item.map(value) } };
  if (typeof item === 'number') return { numberValue: item };
  if (typeof item === 'boolean') return { boolValue: item };
  if (typeof item === 'string') return { stringValue: item };
  return { structValue: struct(item) };
}

const client = new EvaluationService(process.argv[2], grpc.credentials.createInsecure());
const call = client.evaluate(
  {
    context: {
      messages: [
        { role: 'user', text: 'Which flight did you book?' },
        { role: 'assistant', text: 'You fly to Lisbon, reference BK-12345.' },
      ],
      lastInvocation: { latency: { seconds: 1, nanos: 234000000 } },
    },
    evaluators: [
      { type: 'regex', config: struct({ pattern: 'BK-[0-9]{5}' }) },
      { type: 'latency-budget', config: struct({ maxMs: 3000 }) },
      { type: 'response-length' },
    ],
  },
  { deadline: Date.now() + 10_000 },
);

let summary;
call.on('data', (message) => {
  console.log(JSON.stringify(message));
  summary = message.summary ?? summary;
});
call.on('error', (error) => {
  console.error(error.message);
  process.exitCode = 2;
});
call.on('end', () => {
  client.close();
  process.exitCode ??= summary?.success ? 0 : 1;
});
