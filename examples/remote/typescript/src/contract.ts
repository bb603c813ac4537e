// The contract, loaded from the .proto files when the program starts, and plain data to and from
// google.protobuf.Struct. `npm run types` makes the types in gen/.

import * as path from 'node:path';

import * as grpc from '@grpc/grpc-js';
import * as protoLoader from '@grpc/proto-loader';

import type { ProtoGrpcType as Details } from './gen/details';
import type { Duration } from './gen/google/protobuf/Duration';
import type { Struct } from './gen/google/protobuf/Struct';
import type { Value } from './gen/google/protobuf/Value';
import type { ProtoGrpcType as Evaluation } from './gen/evaluation_service';
import type { ProtoGrpcType as Plugin } from './gen/evaluator_plugin_service';
import type { ProtoGrpcType as Registry } from './gen/registry_service';

// Where the .proto files of evald are: here, those of this checkout.
const PROTOS = path.join(__dirname, '..', '..', '..', '..', 'protos');

const definition = protoLoader.loadSync(
  [
    'evald/v1/evaluation_service.proto',
    'evald/plugin/v1/evaluator_plugin_service.proto',
    'evald/plugin/v1/registry_service.proto',
    'google/rpc/details.proto',
  ],
  // The same options as those of `npm run types`. Without defaults, what was not sent is undefined.
  { includeDirs: [PROTOS, path.join(__dirname, '..', 'protos')], longs: String, enums: String, oneofs: true },
);

export const { evald, google } = grpc.loadPackageDefinition(definition) as unknown as Details &
  Evaluation &
  Plugin &
  Registry;

export type Json = null | boolean | number | string | Json[] | { [key: string]: Json };

export function toStruct(data: { [key: string]: Json }): Struct {
  return { fields: Object.fromEntries(Object.entries(data).map(([key, item]) => [key, toValue(item)])) };
}

function toValue(item: Json): Value {
  if (item === null) return { nullValue: 'NULL_VALUE' };
  if (Array.isArray(item)) return { listValue: { values: item.map(toValue) } };
  if (typeof item === 'number') return { numberValue: item };
  if (typeof item === 'boolean') return { boolValue: item };
  if (typeof item === 'string') return { stringValue: item };
  return { structValue: toStruct(item) };
}

export function fromStruct(struct: Struct | null | undefined): { [key: string]: Json } {
  return Object.fromEntries(Object.entries(struct?.fields ?? {}).map(([key, item]) => [key, fromValue(item)]));
}

function fromValue(value: Value): Json {
  if (value.listValue) return (value.listValue.values ?? []).map(fromValue);
  if (value.structValue) return fromStruct(value.structValue);
  return (value.numberValue as number | undefined) ?? value.stringValue ?? value.boolValue ?? null;
}

/** A duration in milliseconds. */
export function milliseconds(duration: Duration | null | undefined): number {
  return Number(duration?.seconds ?? 0) * 1000 + (duration?.nanos ?? 0) / 1e6;
}

/** Milliseconds as a duration. */
export function toDuration(ms: number): Duration {
  return { seconds: Math.floor(ms / 1000), nanos: Math.round((ms % 1000) * 1e6) };
}
