import assert from 'node:assert/strict';
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, test } from 'node:test';

import { clientAccess, isThisMachine, serverCredentials } from './access';

afterEach(() => {
  for (const name of Object.keys(process.env)) if (name.startsWith('EVALD_')) delete process.env[name];
});

test('only addresses of this machine count as its own', () => {
  const cases: [string, boolean][] = [
    ['127.0.0.1:1', true],
    ['localhost:1', true],
    ['[::1]:1', true],
    ['unix:/run/evald.sock', true],
    ['dns:///localhost:1', true],
    ['ipv4:127.0.0.1:1', true],
    ['localhost.example.org:1', false],
    ['127.0.0.1.example.org:1', false],
    ['dns://8.8.8.8/evald:1', false],
    ['dns://8.8.8.8/localhost:1', false],
    ['ipv4:127.0.0.1:1,8.8.8.8:1', false],
    ['0.0.0.0:1', false],
    ['xds:///localhost:1', false],
    ['evald', false],
  ];
  for (const [target, ours] of cases) assert.equal(isThisMachine(target), ours, target);
});

test('a token goes to another machine encrypted only', () => {
  process.env['EVALD_TOKEN'] = 'canary-token';
  assert.throws(
    () => clientAccess('evald.example.org:50051'),
    (problem: Error) => problem.message.includes('without TLS') && !problem.message.includes('canary'),
  );
  clientAccess('127.0.0.1:50051');
  process.env['EVALD_TLS'] = '1';
  clientAccess('evald.example.org:50051');
});

test('what contradicts itself is refused', () => {
  const folder = mkdtempSync(join(tmpdir(), 'access-'));
  const noPem = join(folder, 'ca.pem');
  writeFileSync(noPem, 'none');
  const cases = [
    { EVALD_TLS: 'maybe' },
    { EVALD_CERT_FILE: '/nowhere' },
    { EVALD_CA_FILE: '/nowhere' },
    { EVALD_CA_FILE: noPem },
    { EVALD_TOKEN: 'a', EVALD_TOKEN_FILE: 'b' },
  ];
  for (const environment of cases) {
    Object.assign(process.env, environment);
    assert.throws(() => clientAccess('127.0.0.1:1'), JSON.stringify(environment));
    for (const name of Object.keys(environment)) delete process.env[name];
  }
  process.env['EVALD_TLS_CLIENT_CA_FILE'] = noPem;
  assert.throws(() => serverCredentials());
  rmSync(folder, { recursive: true });
});
