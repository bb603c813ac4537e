// Serves TypeScript functions to evald as evaluators. One program does it either way: it listens and evald
// dials it (listen), or it dials out to evald (connect). Copy this file, access.ts, contract.ts and turn.ts.

import { randomUUID } from 'node:crypto';
import { setTimeout as sleep } from 'node:timers/promises';
import { parseArgs } from 'node:util';

import * as grpc from '@grpc/grpc-js';
import { HealthImplementation } from 'grpc-health-check';

import { clientAccess, serverCredentials } from './access';
import { evald, fromStruct, type Json, milliseconds, toDuration, toStruct } from './contract';
import type { AttachRequest } from './gen/evald/plugin/v1/AttachRequest';
import type { AttachResponse__Output as AttachResponse } from './gen/evald/plugin/v1/AttachResponse';
import type { EvaluationOutput } from './gen/evald/plugin/v1/EvaluationOutput';
import type { EvaluationTask__Output as EvaluationTask } from './gen/evald/plugin/v1/EvaluationTask';
import type { KeepAliveResponse__Output as KeepAliveResponse } from './gen/evald/plugin/v1/KeepAliveResponse';
import type { PluginInfo } from './gen/evald/plugin/v1/PluginInfo';
import type { RegisterRequest } from './gen/evald/plugin/v1/RegisterRequest';
import type { RegisterResponse__Output as Lease } from './gen/evald/plugin/v1/RegisterResponse';
import type { RegistryServiceClient } from './gen/evald/plugin/v1/RegistryService';
import type { EvaluatorType } from './gen/evald/v1/EvaluatorType';
import type { Turn } from './turn';

export type { EvaluationOutput, Turn };

const SERVICE = 'evald.plugin.v1.EvaluatorPluginService';
// evald's own limit is 16 MiB unless its operator raises it.
const MAX_MESSAGE_BYTES = 64 << 20;
// The largest output that a server accepts.
const MAX_OUTPUT_BYTES = 1 << 20;
// How long open tasks may still take after SIGTERM; Kubernetes kills after 30 s.
const GRACE_MS = 10_000;
const MAX_BACKOFF_MS = 3_000;
const CHANNEL_OPTIONS: grpc.ChannelOptions = {
  'grpc.max_receive_message_length': MAX_MESSAGE_BYTES,
  'grpc.initial_reconnect_backoff_ms': 100,
  'grpc.max_reconnect_backoff_ms': 1_000,
  // Notices a server that is gone without a word; evald allows a ping every 10 s.
  'grpc.keepalive_time_ms': 20_000,
  'grpc.keepalive_timeout_ms': 5_000,
};
// With one of these, trying the same again is of no use. Only for the first try: later refusals come and go
// with the server's configuration.
const FINAL = new Set<grpc.status>([
  grpc.status.INVALID_ARGUMENT,
  grpc.status.ALREADY_EXISTS,
  grpc.status.PERMISSION_DENIED,
  grpc.status.FAILED_PRECONDITION,
  grpc.status.UNAUTHENTICATED,
  grpc.status.UNIMPLEMENTED,
]);

/**
 * One type of evaluator. `evaluate` is called many times at once, with a config that evald has checked
 * against the schema; `signal` aborts when the task is cancelled or its time is over. It must give the same
 * answer to a task that is sent again.
 */
export interface Evaluator {
  type: EvaluatorType;
  evaluate(
    turn: Turn,
    config: { [key: string]: Json },
    signal: AbortSignal,
  ): EvaluationOutput | Promise<EvaluationOutput>;
}

export interface Plugin {
  name: string;
  version: string;
  evaluators: Evaluator[];
  /** Tasks that evald may have open here at a time. */
  maxConcurrency: number;
}

/** The operator of the server has removed the plugin. */
export class Revoked extends Error {}

function info(plugin: Plugin): PluginInfo {
  return {
    name: plugin.name,
    version: plugin.version,
    contractVersions: ['evald.plugin.v1'],
    evaluatorTypes: plugin.evaluators.map((evaluator) => evaluator.type),
    maxConcurrency: plugin.maxConcurrency,
    capabilities: ['CAPABILITY_CANCEL'],
    sdk: 'typescript/example',
  };
}

function find(plugin: Plugin, task: EvaluationTask): Evaluator | undefined {
  return plugin.evaluators.find(
    ({ type }) => type.type === task.type && (!task.version || type.version === task.version),
  );
}

/** A key of a task's config that the type's schema does not know: evald refuses it, other callers may not. */
function unknownKey({ type }: Evaluator, config: { [key: string]: Json }): string | undefined {
  const schema = JSON.parse(type.configSchemaJson || '{}');
  if (schema.additionalProperties !== false) return undefined;
  return Object.keys(config).find((key) => !(key in (schema.properties ?? {})));
}

const log = (...words: unknown[]) => console.error(...words);

let activeTasks = 0;

/** A task's output: that of the evaluator, or an error in its place. Whoever cancels it aborts `control`. */
export async function work(
  plugin: Plugin,
  task: EvaluationTask,
  control: AbortController,
): Promise<EvaluationOutput> {
  const evaluator = find(plugin, task);
  if (!evaluator) {
    const got = `${task.type} ${task.version ?? ''}`.trim();
    const offered = plugin.evaluators.map(({ type }) => `${type.type} ${type.version}`).join(', ');
    return errored('UNKNOWN_TYPE', `"${got}" is not offered by this worker, which offers ${offered}`);
  }
  const config = fromStruct(task.config);
  const unknown = unknownKey(evaluator, config);
  if (unknown !== undefined) return errored('INVALID_CONFIG', `config.${unknown}: unknown key`);
  const { signal } = control;
  const timer = task.timeout && setTimeout(() => control.abort('TIMEOUT'), milliseconds(task.timeout));
  activeTasks++;
  try {
    const output = await new Promise<EvaluationOutput>((resolve, reject) => {
      signal.addEventListener('abort', () =>
        resolve(
          signal.reason === 'TIMEOUT'
            ? errored('TIMEOUT', 'the evaluator did not finish within its time limit')
            : errored('CANCELLED', 'the task was cancelled'),
        ),
      );
      Promise.resolve(evaluator.evaluate(task.context ?? {}, config, signal)).then(resolve, reject);
    });
    return sendable(output);
  } catch (problem) {
    log(`${task.type}: task ${task.taskId}:`, problem);
    return errored('EVALUATOR_EXCEPTION', 'the evaluator raised an exception; its log has the details');
  } finally {
    activeTasks--;
    clearTimeout(timer);
  }
}

/** An output, or an error in place of one that gRPC cannot send: that would end the stream, and all other tasks. */
function sendable(output: EvaluationOutput): EvaluationOutput {
  let size: number;
  try {
    size = evald.plugin.v1.EvaluatorPluginService.service.Evaluate.responseSerialize({ output }).length;
  } catch (problem) {
    return errored('CONTRACT_VIOLATION', `output: ${problem instanceof Error ? problem.message : problem}`);
  }
  if (size <= MAX_OUTPUT_BYTES) return output;
  return errored('CONTRACT_VIOLATION', `output: got ${size} bytes, wanted at most ${MAX_OUTPUT_BYTES}`);
}

/**
 * Where a plugin that listens registers. target: how that server reaches it, when not by the address itself.
 * tlsProfile: with which of the TLS profiles in its configuration.
 */
export interface Registration {
  server: string;
  target?: string | undefined;
  tlsProfile?: string | undefined;
}

/** Serves on an address until `stop` aborts, then finishes the open tasks. It may register at a server, too. */
export async function listen(
  plugin: Plugin,
  address: string,
  stop: AbortSignal,
  registration?: Registration,
): Promise<void> {
  const server = new grpc.Server({ 'grpc.max_receive_message_length': MAX_MESSAGE_BYTES });
  server.addService(evald.plugin.v1.EvaluatorPluginService.service, {
    Describe: (_: unknown, reply: grpc.sendUnaryData<object>) => reply(null, { plugin: info(plugin) }),
    Evaluate: async (call: grpc.ServerUnaryCall<{ task?: EvaluationTask }, object>, reply: grpc.sendUnaryData<object>) => {
      const control = new AbortController();
      call.on('cancelled', () => control.abort('CANCELLED'));
      reply(null, { output: await work(plugin, call.request.task ?? {}, control) });
    },
  });
  const health = new HealthImplementation({ '': 'SERVING', [SERVICE]: 'SERVING' });
  health.addToServer(server);
  const port = await new Promise<number>((resolve, reject) =>
    server.bindAsync(address, serverCredentials(), (error, bound) =>
      error ? reject(error) : resolve(bound),
    ),
  );
  const bound = `${address.slice(0, address.lastIndexOf(':'))}:${port}`;
  console.log(`${plugin.name} listens on ${bound}`);

  try {
    if (registration) await stayRegistered(plugin, { ...registration, target: registration.target ?? bound }, stop);
    else await aborted(stop);
  } finally {
    health.setStatus('', 'NOT_SERVING'); // so that nobody sends more
    health.setStatus(SERVICE, 'NOT_SERVING');
    const timer = setTimeout(() => server.forceShutdown(), GRACE_MS);
    await new Promise((resolve) => server.tryShutdown(resolve));
    clearTimeout(timer);
  }
}

/** Holds a lease until `stop` aborts, then gives it back. Throws when the first try is refused for good, or Revoked. */
async function stayRegistered(plugin: Plugin, registration: Registration, stop: AbortSignal): Promise<void> {
  const { server, target, tlsProfile } = registration;
  const registry = dial(server);
  const request = { plugin: info(plugin), instanceId: randomUUID(), target, tlsProfile, ttl: toDuration(15_000) };
  let registered = false;
  try {
    for (let attempt = 0; !stop.aborted; attempt++) {
      const began = Date.now();
      try {
        const lease = await register(registry, request);
        registered = true;
        log(`registered at ${server} as ${target}`);
        const state = await renew(registry, lease, stop);
        if (stop.aborted) {
          await deregister(registry, lease);
          return;
        }
        if (state === 'LEASE_STATE_REVOKED') throw new Revoked('the operator of the server has removed this plugin');
        throw new Error('the lease has expired');
      } catch (problem) {
        if (stop.aborted) return;
        if (problem instanceof Revoked) throw problem;
        if (!registered && FINAL.has((problem as grpc.ServiceError).code)) throw problem;
        if (Date.now() - began > MAX_BACKOFF_MS) attempt = 0;
        log('registering again:', (problem as Error).message);
        await pause(backoff(attempt), stop);
      }
    }
  } finally {
    registry.close();
  }
}

function register(registry: RegistryServiceClient, request: RegisterRequest): Promise<Lease> {
  return new Promise((resolve, reject) =>
    registry.register(request, { deadline: Date.now() + 5_000 }, (error, lease) =>
      error ? reject(error) : resolve(lease ?? {}),
    ),
  );
}

function deregister(registry: RegistryServiceClient, lease: Lease): Promise<void> {
  const request = { leaseId: lease.leaseId, drain: true };
  // A server that does not answer lets the lease run out.
  return new Promise((resolve) => registry.deregister(request, { deadline: Date.now() + 2_000 }, () => resolve()));
}

/** Keeps a lease alive until it is no more, and says what it is then. */
function renew(registry: RegistryServiceClient, lease: Lease, stop: AbortSignal): Promise<string | undefined> {
  return new Promise((resolve, reject) => {
    const stream = registry.keepAlive();
    const send = () => stream.write({ leaseId: lease.leaseId, activeTasks });
    const timer = setInterval(send, Math.max(milliseconds(lease.renewInterval), 100));
    const cancel = () => stream.cancel();
    stop.addEventListener('abort', cancel);
    let state: string | undefined;
    stream.on('data', (answer: KeepAliveResponse) => {
      state = answer.state;
      if (state !== 'LEASE_STATE_ACTIVE') stream.cancel();
    });
    stream.on('error', () => undefined); // status says it too
    stream.on('status', (status: grpc.StatusObject) => {
      clearInterval(timer);
      stop.removeEventListener('abort', cancel);
      if (stop.aborted || (state && state !== 'LEASE_STATE_ACTIVE')) resolve(state);
      else reject(Object.assign(new Error(status.details), { code: status.code }));
    });
    send();
  });
}

/**
 * Dials out to evald and works on what it sends, until `stop` aborts and the open tasks are finished. It
 * connects again whenever the connection breaks, and throws only when the first try is refused for good.
 */
export async function connect(plugin: Plugin, server: string, stop: AbortSignal): Promise<void> {
  const registry = dial(server);
  const identity: Identity = { instanceId: randomUUID(), welcomed: false };
  for (let attempt = 0; !stop.aborted; attempt++) {
    const began = Date.now();
    const end = await session(plugin, registry, identity, stop);
    if (stop.aborted) break;
    if (!identity.welcomed && FINAL.has(end.status.code)) throw new Error(end.status.details);
    if (Date.now() - began > MAX_BACKOFF_MS) attempt = 0;
    log('connecting again:', end.status.details || 'the server has ended the session');
    await pause(Math.max(end.delayMs, backoff(attempt)), stop);
  }
  registry.close();
}

interface Identity {
  instanceId: string;
  /** Whether the server has accepted the plugin before. */
  welcomed: boolean;
}

interface SessionEnd {
  status: grpc.StatusObject;
  /** How long the server wants to be left alone. */
  delayMs: number;
}

/** One session, from hello to the end of the stream. */
function session(
  plugin: Plugin,
  registry: RegistryServiceClient,
  identity: Identity,
  stop: AbortSignal,
): Promise<SessionEnd> {
  return new Promise((resolve) => {
    const stream = registry.attach();
    const send = (frame: AttachRequest) => stream.write(frame);
    const cancel = () => stream.cancel();
    const open = new Map<string, AbortController>();
    let delayMs = 0;
    let draining = false;
    let ended = false;
    const opening = setTimeout(cancel, 10_000);
    let timer: NodeJS.Timeout | undefined;

    const endIfIdle = () => {
      if (draining && open.size === 0 && !ended) stream.end(); // the server ends its side
    };
    const drain = () => {
      send({ draining: { reason: 'the plugin is stopping' } });
      draining = true;
      timer = setTimeout(cancel, GRACE_MS);
      endIfIdle();
    };
    const start = async (task: EvaluationTask) => {
      const taskId = task.taskId ?? '';
      if (open.has(taskId)) return;
      const control = new AbortController();
      open.set(taskId, control);
      const output = await work(plugin, task, control);
      open.delete(taskId);
      if (!ended) send({ completed: { taskId, output } });
      endIfIdle();
    };

    stream.on('data', (frame: AttachResponse) => {
      if (frame.welcome) {
        clearTimeout(opening);
        identity.welcomed = true;
        log(`connected: session ${frame.welcome.sessionId ?? ''} of server ${frame.welcome.serverId ?? ''}`);
      } else if (frame.task) {
        void start(frame.task);
      } else if (frame.cancelTaskId) {
        open.get(frame.cancelTaskId)?.abort('CANCELLED'); // its output still goes out: that gives the credit back
      } else if (frame.ping) {
        send({ pong: { nonce: frame.ping.nonce, activeTasks: open.size } });
      } else if (frame.draining) {
        draining = true;
        delayMs = milliseconds(frame.draining.reconnectDelay);
        endIfIdle();
      }
    });
    stream.on('error', () => undefined); // status says it too
    stream.on('status', (status: grpc.StatusObject) => {
      ended = true;
      clearTimeout(opening);
      clearTimeout(timer);
      stop.removeEventListener('abort', drain);
      for (const control of open.values()) control.abort('CANCELLED');
      resolve({ status, delayMs });
    });
    const { instanceId } = identity;
    send({ hello: { plugin: info(plugin), instanceId, initialCredit: plugin.maxConcurrency } });
    stop.addEventListener('abort', drain);
  });
}

function dial(server: string): RegistryServiceClient {
  const [credentials, options] = clientAccess(server);
  return new evald.plugin.v1.RegistryService(server, credentials, { ...CHANNEL_OPTIONS, ...options });
}

/** The wait before an attempt: it doubles up to 3 s, and half of it is chance, lest many come back at one moment. */
function backoff(attempt: number): number {
  const longest = Math.min(MAX_BACKOFF_MS, 100 * 2 ** attempt);
  return longest / 2 + (Math.random() * longest) / 2;
}

async function pause(ms: number, stop: AbortSignal): Promise<void> {
  await sleep(ms, undefined, { signal: stop }).catch(() => undefined);
}

function aborted(signal: AbortSignal): Promise<void> {
  return new Promise((resolve) => signal.addEventListener('abort', () => resolve(), { once: true }));
}

/** Output of a task without a verdict. code: one of the list in evald's protos/README.md. */
export function errored(code: string, message: string): EvaluationOutput {
  return { verdict: 'VERDICT_ERROR', error: { code, message } };
}

/** Output of a metric. */
export function measured(value: number, reason: string): EvaluationOutput {
  return { verdict: 'VERDICT_PASSED', value, reason };
}

/** Output of a metric that lacks the data to measure: 0, which then counts nowhere. */
export function unavailable(reason: string): EvaluationOutput {
  return { ...measured(0, reason), metadata: toStruct({ available: false }) };
}

/** Output of an assertion that holds. score: from 0 to 1. */
export function passed(score: number, reason: string): EvaluationOutput {
  return { verdict: 'VERDICT_PASSED', score, reason };
}

/** Output of an assertion that does not hold. score: from 0 to 1. */
export function failed(score: number, reason: string): EvaluationOutput {
  return { verdict: 'VERDICT_FAILED', score, reason };
}

/** Runs the plugin as its command line says, until SIGTERM or SIGINT. */
export async function main(plugin: Plugin): Promise<void> {
  const { values } = parseArgs({
    options: {
      connect: { type: 'string', multiple: true }, // HOST:PORT of an evald server to dial out to; may be several
      listen: { type: 'string', default: '127.0.0.1:50061' }, // HOST:PORT; port 0 picks a free port
      register: { type: 'string' }, // HOST:PORT of an evald server to register at, when listening
      target: { type: 'string' }, // how that server reaches this plugin, when not by the address itself
      'tls-profile': { type: 'string' }, // of that server for this plugin, when it listens with TLS
    },
  });
  const stop = new AbortController();
  for (const signal of ['SIGTERM', 'SIGINT']) process.once(signal, () => stop.abort());
  try {
    if (values.connect !== undefined) {
      const session = (server: string) => connect(plugin, server, stop.signal).finally(() => stop.abort());
      await Promise.all(values.connect.map(session));
    } else {
      const { listen: address, register: server, target, 'tls-profile': tlsProfile } = values;
      await listen(plugin, address, stop.signal, server === undefined ? undefined : { server, target, tlsProfile });
    }
  } catch (problem) {
    log((problem as Error).message);
    // Revoked is no failure: whoever starts failed programs again should not start this one.
    if (!(problem instanceof Revoked)) process.exitCode = 1;
  }
}
