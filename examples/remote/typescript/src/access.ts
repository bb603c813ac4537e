// How a program reaches evald, and how evald reaches a plugin that listens: TLS and a token, as the
// environment has them.
//
//     EVALD_TLS=1                      encrypt, and trust Node's roots; each file below turns it on too
//     EVALD_CA_FILE                    the CA of the server's certificate
//     EVALD_CERT_FILE, EVALD_KEY_FILE  this program's certificate, for servers that ask for one
//     EVALD_TOKEN_FILE, EVALD_TOKEN    the API key; the file is read again for every call
//
// Of a plugin that listens, named as those of a server:
//
//     EVALD_TLS_CERT_FILE, EVALD_TLS_KEY_FILE  the certificate that it shows
//     EVALD_TLS_CLIENT_CA_FILE                 the CA of the certificates that callers must show
//
// All files are PEM. Certificates are read once, when the program starts.

import { readFileSync } from 'node:fs';
import { BlockList, isIP } from 'node:net';

import * as grpc from '@grpc/grpc-js';

/** What a client of a server is made with. Throws when the environment contradicts itself. */
export function clientAccess(server: string): [grpc.ChannelCredentials, grpc.ClientOptions] {
  const channel = channelCredentials();
  const [text, file] = [setting('EVALD_TOKEN'), setting('EVALD_TOKEN_FILE')];
  if (text && file) throw new Error('EVALD_TOKEN: both EVALD_TOKEN and EVALD_TOKEN_FILE are set, wanted one of them');
  if (!text && !file) return [channel, {}];
  if (!channel._isSecure() && !isThisMachine(server)) {
    throw new Error(`EVALD_TOKEN: a token for ${server} without TLS, wanted EVALD_CA_FILE or EVALD_TLS=1`);
  }
  const credentials = grpc.credentials.createFromMetadataGenerator((_, done) => {
    const metadata = new grpc.Metadata();
    try {
      metadata.set('authorization', `Bearer ${current(text, file)}`);
    } catch (problem) {
      done(Object.assign(problem as Error, { code: grpc.status.UNAUTHENTICATED }));
      return;
    }
    done(null, metadata);
  });
  // Not composed with those of the channel: grpc-js refuses that for plaintext, which is allowed on this machine.
  const send: grpc.Interceptor = (options, next) => new grpc.InterceptingCall(next({ ...options, credentials }));
  return [channel, { interceptors: [send] }];
}

/** TLS of a plugin that listens: none without EVALD_TLS_CERT_FILE. */
export function serverCredentials(): grpc.ServerCredentials {
  const [cert, key, ca] = ['EVALD_TLS_CERT_FILE', 'EVALD_TLS_KEY_FILE', 'EVALD_TLS_CLIENT_CA_FILE'].map(pem);
  if (!cert !== !key || (!cert && ca)) {
    throw new Error('EVALD_TLS_CERT_FILE: wanted EVALD_TLS_KEY_FILE as well; EVALD_TLS_CLIENT_CA_FILE needs both');
  }
  if (!cert || !key) return grpc.ServerCredentials.createInsecure();
  return grpc.ServerCredentials.createSsl(ca ?? null, [{ cert_chain: cert, private_key: key }], ca !== undefined);
}

function channelCredentials(): grpc.ChannelCredentials {
  const wanted = (setting('EVALD_TLS') ?? '').trim().toLowerCase();
  const names = ['EVALD_CA_FILE', 'EVALD_CERT_FILE', 'EVALD_KEY_FILE'];
  const off = ['0', 'false', 'no', 'off'].includes(wanted);
  if (!off && wanted !== '' && !['1', 'true', 'yes', 'on'].includes(wanted)) {
    throw new Error(`EVALD_TLS: got "${wanted.slice(0, 20)}", wanted 1 or 0`);
  }
  if (off || (wanted === '' && !names.some(setting))) return grpc.credentials.createInsecure();
  const [ca, cert, key] = names.map(pem);
  if (!cert !== !key) {
    throw new Error('EVALD_CERT_FILE: only one of EVALD_CERT_FILE and EVALD_KEY_FILE is set, wanted both or neither');
  }
  return grpc.credentials.createSsl(ca, key, cert);
}

/** A variable; undefined where it is not set, or empty. */
function setting(name: string): string | undefined {
  return process.env[name] || undefined;
}

function pem(name: string): Buffer | undefined {
  const file = setting(name);
  if (!file) return undefined;
  const data = readFileSync(file);
  if (!data.includes('-----BEGIN ')) throw new Error(`${name}: ${file} is not a PEM file`);
  return data;
}

function current(text: string | undefined, file: string | undefined): string {
  const token = text ?? read(file as string);
  // Never shown, not even in part.
  if (!/^[!-~]+$/.test(token)) throw new Error('EVALD_TOKEN: wanted printable ASCII without spaces');
  return token;
}

function read(file: string): string {
  try {
    return readFileSync(file, 'utf8').trim();
  } catch (problem) {
    // Without the path, which is a key where the two variables were mixed up.
    throw new Error(`EVALD_TOKEN_FILE: cannot be read: ${(problem as NodeJS.ErrnoException).code}`);
  }
}

const LOOPBACK = new BlockList();
LOOPBACK.addSubnet('127.0.0.0', 8, 'ipv4');
LOOPBACK.addAddress('::1', 'ipv6');

/** Whether only this machine can read what is sent to a target of gRPC's. Names but localhost may be anywhere. */
export function isThisMachine(target: string): boolean {
  if (/^unix(-abstract)?:/.test(target)) return true;
  return target
    .replace(/^(dns:\/\/\/|dns:|ipv4:|ipv6:)/, '')
    .split(',')
    .every((address) => {
      const host = /^\[?([^[\]]*)\]?:\d+$/.exec(address)?.[1] ?? '';
      return host === 'localhost' || (isIP(host) !== 0 && LOOPBACK.check(host, isIP(host) === 6 ? 'ipv6' : 'ipv4'));
    });
}
