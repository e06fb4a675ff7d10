// npm ali-ons, unmodified: a level, a set time, and a message whose handler fails once. One JSON object a line on stdout.
'use strict';
const { Consumer, Producer, Message } = require('ali-ons');

const [nameSrv, topic, group] = process.argv.slice(2);
const say = (event, fields) => process.stdout.write(JSON.stringify({ program: 'ali-ons', event, ...fields }) + '\n');
const logger = { info() {}, debug() {}, warn() {}, error() {} };
const TIMEOUT_MS = 60000;

async function main() {
  const consumer = new Consumer({ httpclient: {}, nameSrv, consumerGroup: group, logger, consumeFromWhere: 'CONSUME_FROM_FIRST_OFFSET' });
  consumer.on('error', () => {}); // The failure of the handler below.
  const done = new Promise((resolve) => {
    const left = new Set(['after a level', 'at a time', 'again']);
    consumer.subscribe(topic, '*', async (message) => {
      const body = message.body.toString();
      say('received', { body, at_ms: Date.now(), times: message.reconsumeTimes });
      if (body === 'again' && message.reconsumeTimes === 0) throw new Error('the first delivery fails');
      left.delete(body);
      if (left.size === 0) resolve();
    });
  });
  await consumer.ready();
  const producer = new Producer({ httpclient: {}, nameSrv, producerGroup: 'PID_ali_features', logger });
  await producer.ready();
  const now = Date.now();
  const leveled = new Message(topic, 'TagA', 'after a level');
  leveled.delayTimeLevel = 1;
  const timed = new Message(topic, 'TagA', 'at a time');
  timed.setStartDeliverTime(now + 4000);
  for (const [message, due_ms] of [[leveled, now + 1000], [timed, now + 4000], [new Message(topic, 'TagA', 'again'), now]]) {
    const result = await producer.send(message);
    say('sent', { body: message.body.toString(), status: result.sendStatus, due_ms });
  }
  await Promise.race([done, new Promise((_, reject) => setTimeout(() => reject(new Error(`not all received in ${TIMEOUT_MS} ms`)), TIMEOUT_MS))]);
  await consumer.close();
  await producer.close();
  process.exit(0);
}

main().catch((error) => { say('error', { error: String(error) }); process.exit(1); });
