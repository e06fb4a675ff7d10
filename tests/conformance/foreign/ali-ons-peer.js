// npm ali-ons, unmodified, driven by the tests: produces and consumes, one JSON object a line on stdout.
'use strict';
const { Consumer, Producer, Message } = require('ali-ons');

const [nameSrv, topic, group, count] = [process.argv[2], process.argv[3], process.argv[4], Number(process.argv[5])];
const say = (object) => process.stdout.write(JSON.stringify(object) + '\n');
const logger = { info() {}, debug() {}, warn() {}, error(error) { say({ error: String(error) }); } };

async function main() {
  const consumer = new Consumer({ httpclient: {}, nameSrv, consumerGroup: group, logger, consumeFromWhere: 'CONSUME_FROM_FIRST_OFFSET' });
  consumer.on('error', (error) => say({ error: String(error) }));
  const done = new Promise((resolve) => {
    const seen = new Set();
    consumer.subscribe(topic, '*', async (message) => {
      const body = message.body.toString();
      say({ received: body.length > 100 ? body.length : body, tag: message.tags, keys: message.keys, offset: Number(message.queueOffset) });
      seen.add(body);
      if (seen.size === count + 1) resolve();
    });
  });
  await consumer.ready();
  const producer = new Producer({ httpclient: {}, nameSrv, producerGroup: 'PID_ali', logger });
  producer.on('error', (error) => say({ error: String(error) }));
  await producer.ready();
  for (let i = 0; i < count; i++) {
    const message = new Message(topic, 'TagA', `hello ${i}`);
    message.keys = [`key-${i}`];
    const result = await producer.send(message);
    say({ sent: result.sendStatus, msgId: result.msgId, queueOffset: Number(result.queueOffset) });
  }
  const large = await producer.send(new Message(topic, 'TagA', 'y'.repeat(50000)));
  say({ sent: large.sendStatus, msgId: large.msgId, queueOffset: Number(large.queueOffset) });
  await Promise.race([done, new Promise((_, reject) => setTimeout(() => reject(new Error('not all received in 60 s')), 60000))]);
  await consumer.close();
  await producer.close();
  say({ closed: true });
  process.exit(0);
}

main().catch((error) => { say({ error: String(error) }); process.exit(1); });
