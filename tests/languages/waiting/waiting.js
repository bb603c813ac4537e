// A plugin whose evaluator waits as long as its config says, or raises.

const { setTimeout: sleep } = require('node:timers/promises');

const { main, passed } = require('../../../examples/remote/typescript/dist/plugin.js');

const wait = {
  type: { type: 'test.wait', version: '1.0.0', kind: 'EVALUATOR_KIND_ASSERTION' },
  async evaluate(turn, config, signal) {
    if (config.raise) throw new Error('a secret');
    console.log('began');
    try {
      await sleep(config.seconds * 1000, undefined, { signal });
    } catch (problem) {
      console.log('told to stop');
      throw problem;
    }
    return passed(1, 'waited');
  },
};

void main({ name: 'test.waiting', version: '1.0.0', evaluators: [wait], maxConcurrency: 4 });
