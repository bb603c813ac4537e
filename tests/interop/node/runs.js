// Keeps scenarios, personas, connectors and experiments, and runs them: node runs.js HOST:PORT
//
// The client, and the agent that its runs call, are made from the .proto files. Ends with 0 when everything is as it
// should be.

const assert = require('node:assert/strict');
const { randomUUID } = require('node:crypto');
const path = require('node:path');
const grpc = require('@grpc/grpc-js');
const protoLoader = require('@grpc/proto-loader');

const kinds = ['scenario', 'persona', 'connector', 'experiment', 'run'];
const files = [...kinds.map((kind) => `evald/v1/${kind}_service.proto`), 'evald/agent/v1/agent_service.proto'];
const { evald } = grpc.loadPackageDefinition(
  protoLoader.loadSync(files, {
    includeDirs: [path.join(__dirname, '..', '..', '..', 'protos')],
    enums: String,
    longs: Number,
    arrays: true,
    oneofs: true,
  }),
);

// What every gRPC library brings for errors with details: google/rpc/status.proto and error_details.proto.
const message = (...fields) => ({
  fields: Object.fromEntries(fields.map(([name, id, type = 'string', rule]) => [name, { id, type, rule }])),
});
const details = protoLoader.fromJSON(
  {
    nested: {
      Any: message(['type_url', 1], ['value', 2, 'bytes']),
      Status: message(['code', 1, 'int32'], ['message', 2], ['details', 3, 'Any', 'repeated']),
      ErrorInfo: message(['reason', 1], ['domain', 2]),
      FieldViolation: message(['field', 1], ['description', 2]),
      BadRequest: message(['field_violations', 1, 'FieldViolation', 'repeated']),
    },
  },
  { keepCase: true },
);

const clients = {};

function client(service) {
  clients[service] ??= new evald.v1[`${service}Service`](process.argv[2], grpc.credentials.createInsecure());
  return clients[service];
}

const deadline = () => ({ deadline: Date.now() + 20_000 });

function call(service, method, request = {}) {
  return new Promise((resolve, reject) => {
    client(service)[method](request, deadline(), (error, answer) => (error ? reject(error) : resolve(answer)));
  });
}

// Expects that a call is refused with this status, reason and paths of wrong fields.
async function refused(calling, code, reason, fields) {
  const error = await calling.then(() => assert.fail(`not refused: ${reason}`), (problem) => problem);
  assert.equal(error.code, grpc.status[code], error.message);
  const [packed] = error.metadata.get('grpc-status-details-bin');
  const found = Object.fromEntries(
    details.Status.deserialize(packed).details.map(({ type_url: url, value }) => {
      const name = url.split('.').pop();
      return [name, details[name].deserialize(value)];
    }),
  );
  assert.deepEqual({ ...found.ErrorInfo }, { reason, domain: 'evald' });
  assert.deepEqual(found.BadRequest.field_violations.map(({ field }) => field), fields);
}

// The standard methods of one kind of resource. Stores `resource`, and one more that it deletes; returns the id.
async function keep(Kind, resource, mask, changes) {
  const kind = Kind.toLowerCase();
  const create = async (name) => (await call(Kind, `create${Kind}`, { [kind]: { ...resource, name } }))[kind];
  const list = (request) => call(Kind, `list${Kind}s`, request);
  const names = (page) => page[`${kind}s`].map(({ name }) => name);

  const first = await create('first');
  const second = await create('second');
  await refused(create('first'), 'ALREADY_EXISTS', 'RESOURCE_EXISTS', [`${kind}.name`]);

  const page = await list({ pageSize: 1 });
  const rest = await list({ pageSize: 1, pageToken: page.nextPageToken });
  assert.deepEqual([names(page), names(rest), rest.nextPageToken], [['first'], ['second'], undefined]);
  assert.deepEqual(names(await list({ name: 'second' })), ['second']);

  // The mask names one field: the name given beside it must not get through.
  const update = { [kind]: { id: first.id, name: 'not this', ...changes }, updateMask: { paths: [mask] } };
  const updated = (await call(Kind, `update${Kind}`, update))[kind];
  assert.deepEqual({ ...updated, updateTime: null }, { ...first, ...changes, updateTime: null });
  assert.deepEqual((await call(Kind, `get${Kind}`, { [`${kind}Id`]: first.id }))[kind], updated);

  await call(Kind, `delete${Kind}`, { [`${kind}Id`]: second.id });
  const gone = call(Kind, `get${Kind}`, { [`${kind}Id`]: second.id });
  await refused(gone, 'NOT_FOUND', 'RESOURCE_NOT_FOUND', [`${kind}_id`]);
  return first.id;
}

function watch(runId, afterSequence = 0) {
  return new Promise((resolve, reject) => {
    const events = [];
    client('Run')
      .watchRun({ runId, afterSequence }, deadline())
      .on('data', (event) => events.push(event))
      .on('error', reject)
      .on('end', () => resolve(events));
  });
}

async function ended(runId) {
  await watch(runId);
  return (await call('Run', 'getRun', { runId })).run;
}

const says = (text) => ({ latency: { nanos: 1e6 }, messages: [{ role: 'assistant', text }] });
const answers = ({ request }, respond) =>
  respond(null, { invocation: says(request.turn === 1 ? 'What is its number?' : 'Order 10423 is shipped.') });
const breaks = (_call, respond) => respond({ code: grpc.status.INTERNAL, details: 'out of order' });

async function main() {
  // The agent, which may change its mind.
  let agent = answers;
  const server = new grpc.Server();
  server.addService(evald.agent.v1.AgentService.service, { invoke: (...invoked) => agent(...invoked) });
  const port = await new Promise((resolve, reject) => {
    const ready = (error, bound) => (error ? reject(error) : resolve(bound));
    server.bindAsync('127.0.0.1:0', grpc.ServerCredentials.createInsecure(), ready);
  });

  const { connectorTypes } = await call('Connector', 'listConnectorTypes');
  assert.deepEqual(connectorTypes.map(({ type }) => type), ['grpc', 'http', 'langgraph', 'openai-chat', 'replay']);
  connectorTypes.forEach((type) => JSON.parse(type.configSchemaJson));

  const script = ['Where is my order?', '10423'];
  const config = { fields: { pattern: { stringValue: 'shipped' } } };
  const regex = { type: 'regex', config, turnPolicy: 'TURN_POLICY_FINAL_TURN' };
  const evaluators = [regex, { type: 'response-length' }];
  const baseUrl = `127.0.0.1:${port}`;
  const scenarioId = await keep('Scenario', { evaluators, maxMessages: 4 }, 'max_messages', { maxMessages: 8 });
  const personaId = await keep('Persona', { description: 'Bo' }, 'script', { script });
  const connectorId = await keep('Connector', { type: 'grpc', baseUrl: '127.0.0.1:1' }, 'base_url', { baseUrl });
  const matrix = { scenarioIds: [scenarioId], connectorId };
  const experimentId = await keep('Experiment', matrix, 'persona_ids', { personaIds: [personaId] });

  const wrong = { name: 'wrong', maxMessages: 1, evaluators: [{ type: 'regex' }, { type: 'no-such' }] };
  const paths = ['scenario.max_messages', 'scenario.evaluators[0].config.pattern', 'scenario.evaluators[1].type'];
  await refused(call('Scenario', 'createScenario', { scenario: wrong }), 'INVALID_ARGUMENT', 'INVALID_FIELD', paths);

  const prompt = await call('Scenario', 'getScenarioPrompt', { scenarioId, personaId });
  assert.match(prompt.systemPrompt, /Bo/);
  assert.equal(prompt.messages[0].text, prompt.systemPrompt);

  const tried = await call('Connector', 'testConnector', { connectorId, message: 'Hello' });
  assert.deepEqual([tried.success, tried.messages[0].text], [true, 'What is its number?']);

  // A run from its start to its end; the same request starts no second one.
  const request = { scenarioId, personaId, connectorId, requestId: randomUUID() };
  const start = async () => (await call('Run', 'startRun', request)).run.id;
  const played = await start();
  assert.equal(await start(), played);
  const events = await watch(played);
  const turn = ['message', 'message', 'result', 'result', 'turn'];
  assert.deepEqual(events.map(({ event }) => event), ['status', 'status', ...turn, ...turn, 'end']);
  assert.deepEqual(await watch(played, events[6].sequence), events.slice(7));

  const { run } = await call('Run', 'getRun', { runId: played });
  assert.deepEqual([run.status, run.verdict], ['RUN_STATUS_COMPLETED', 'VERDICT_PASSED']);
  assert.deepEqual(
    run.messages.map(({ text }) => text),
    [script[0], 'What is its number?', script[1], 'Order 10423 is shipped.'],
  );
  assert.deepEqual(
    run.turns.map(({ isFinal, evaluation }) => [isFinal, evaluation.results.map(({ verdict }) => verdict)]),
    [
      [undefined, ['VERDICT_SKIPPED', 'VERDICT_PASSED']],
      [true, ['VERDICT_PASSED', 'VERDICT_PASSED']],
    ],
  );

  // A run that ends in error, and its second attempt.
  agent = breaks;
  request.requestId = '';
  const errored = await ended(await start());
  assert.deepEqual([errored.status, errored.error.code], ['RUN_STATUS_ERROR', 'CONNECTOR_UNAVAILABLE']);
  const errors = await call('Run', 'listRuns', { status: 'RUN_STATUS_ERROR' });
  assert.deepEqual(errors.runs.map(({ id }) => id), [errored.id]);
  agent = answers;
  await call('Run', 'retryRun', { runId: errored.id });
  const retried = await ended(errored.id);
  assert.deepEqual([retried.verdict, retried.attempt], ['VERDICT_PASSED', 2]);

  // A run whose agent is silent: it goes on until it is cancelled.
  const asked = new Promise((resolve) => { agent = resolve; });
  const silent = await start();
  const watching = watch(silent);
  await asked;
  await refused(call('Run', 'deleteRun', { runId: silent }), 'FAILED_PRECONDITION', 'RUN_STATUS', ['run_id']);
  await call('Run', 'cancelRun', { runId: silent });
  assert.equal((await watching).at(-1).end.status, 'RUN_STATUS_CANCELLED');

  // A whole experiment, and pages of what has run.
  agent = answers;
  const started = await call('Run', 'startRuns', { experimentId });
  assert.deepEqual(started.runs.map((one) => one.personaId), [personaId]);
  const [{ id: ofExperiment }] = started.runs;
  assert.equal((await ended(ofExperiment)).verdict, 'VERDICT_PASSED');
  const ids = [ofExperiment, silent, errored.id, played];
  const list = async (filter) => (await call('Run', 'listRuns', filter)).runs.map(({ id }) => id);
  const first = await call('Run', 'listRuns', { pageSize: 3 });
  assert.deepEqual(first.runs.map(({ id }) => id), ids.slice(0, 3));
  for (const [filter, found] of [
    [{ pageToken: first.nextPageToken }, ids.slice(3)],
    [{ scenarioId, personaId, connectorId, oldestFirst: true }, [...ids].reverse()],
    [{ experimentId }, [ofExperiment]],
    [{ executionId: started.executionId, verdict: 'VERDICT_PASSED' }, [ofExperiment]],
    [{ status: 'RUN_STATUS_CANCELLED' }, [silent]],
    [{ failedEvaluator: 'regex' }, []],
    [{ until: run.createTime }, []],
    [{ since: run.createTime }, ids],
  ]) {
    assert.deepEqual(await list(filter), found, JSON.stringify(filter));
  }

  // A run as it was comes back after it was deleted; one that was interrupted elsewhere goes on here.
  await call('Run', 'deleteRun', { runId: played });
  await refused(call('Run', 'getRun', { runId: played }), 'NOT_FOUND', 'RESOURCE_NOT_FOUND', ['run_id']);
  const again = (await call('Run', 'importRun', { run })).run;
  assert.deepEqual([again.messages, again.turns], [run.messages, run.turns]);
  const { run: half } = await call('Run', 'getRun', { runId: silent });
  const interrupted = { ...half, id: randomUUID(), status: 'RUN_STATUS_INTERRUPTED' };
  await call('Run', 'importRun', { run: interrupted });
  await call('Run', 'resumeRun', { runId: interrupted.id });
  assert.equal((await ended(interrupted.id)).verdict, 'VERDICT_PASSED');

  Object.values(clients).forEach((one) => one.close());
  server.forceShutdown();
  process.exitCode = 0;
}

process.exitCode = 1; // until all of it was done
main().catch((problem) => {
  console.error(problem);
  process.exit();
});
