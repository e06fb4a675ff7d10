// npm ali-ons, unmodified, driven by the tests: consumes a number of messages, one JSON object a line on stdout.
'use strict';
const { Consumer } = require('ali-ons');

const [nameSrv, topic, group, filter, count] = [...process.argv.slice(2, 6), Number(process.argv[6])];
const say = (object) => process.stdout.write(JSON.stringify(object) + '\n');
const logger = { info() {}, debug() {}, warn() {}, error(error) { say({ error: String(error) }); } };

async function main() {
  const consumer = new Consumer({ httpclient: {}, nameSrv, consumerGroup: group, logger, consumeFromWhere: 'CONSUME_FROM_FIRST_OFFSET' });
  consumer.on('error', (error) => say({ error: String(error) }));
  const done = new Promise((resolve) => {
    const seen = new Set();
    consumer.subscribe(topic, filter, async (message) => {
      say({ body: message.body.toString() });
      seen.add(message.msgId);
      if (seen.size === count) resolve();
    });
  });
  await consumer.ready();
  await Promise.race([done, new Promise((resolve) => setTimeout(resolve, 60000))]);
  await consumer.close();
  process.exit(0);
}

main().catch((error) => { say({ error: String(error) }); process.exit(1); });
