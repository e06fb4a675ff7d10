// Programs of users of Apache RocketMQ's Java client: delay, order, transactions, retry, request-reply. They run side by
// side in one virtual machine, and print one JSON object a line on stdout.
import static java.nio.charset.StandardCharsets.UTF_8;

import java.util.ArrayList;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.listener.MessageListenerOrderly;
import org.apache.rocketmq.client.exception.RequestTimeoutException;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.LocalTransactionState;
import org.apache.rocketmq.client.producer.RequestCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.TransactionListener;
import org.apache.rocketmq.client.producer.TransactionMQProducer;
import org.apache.rocketmq.client.utils.MessageUtil;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

public class FeaturesPeer {
    private interface Program { void run() throws Exception; }

    private static String namesrv;

    public static void main(String[] args) throws Exception {
        namesrv = args[0];
        Map<String, Program> programs = new HashMap<>();
        programs.put("delay", FeaturesPeer::delay);
        programs.put("order", FeaturesPeer::order);
        programs.put("transaction", FeaturesPeer::transaction);
        programs.put("retry", FeaturesPeer::retry);
        programs.put("request", FeaturesPeer::request);
        AtomicInteger failures = new AtomicInteger();
        List<Thread> threads = new ArrayList<>();
        for (int i = 1; i < args.length; i++) {
            Program program = programs.get(args[i]);
            Thread thread = new Thread(() -> {
                try {
                    program.run();
                } catch (Throwable e) {
                    e.printStackTrace();
                    failures.incrementAndGet();
                }
            }, args[i]);
            threads.add(thread);
            thread.start();
        }
        for (Thread thread : threads) thread.join();
        System.exit(failures.get()); // Client threads would keep the process alive.
    }

    private static byte[] bytes(String text) { return text.getBytes(UTF_8); }

    private static String body(Message message) { return new String(message.getBody(), UTF_8); }

    private static String quote(String text) {
        return text == null ? "null" : '"' + text.replace("\\", "\\\\").replace("\"", "\\\"").replace("\n", "\\n") + '"';
    }

    // Values are numbers, booleans or texts.
    private static void say(String program, String event, Object... namesAndValues) {
        StringBuilder line = new StringBuilder("{\"program\":" + quote(program) + ",\"event\":" + quote(event));
        line.append(",\"at_ms\":").append(System.currentTimeMillis());
        for (int i = 0; i < namesAndValues.length; i += 2) {
            Object value = namesAndValues[i + 1];
            boolean isText = !(value instanceof Number || value instanceof Boolean);
            line.append(",\"").append(namesAndValues[i]).append("\":")
                .append(isText ? quote(value == null ? null : value.toString()) : value.toString());
        }
        synchronized (System.out) { System.out.println(line.append('}')); }
    }

    private static <P extends DefaultMQProducer> P started(P producer) throws Exception {
        producer.setNamesrvAddr(namesrv);
        producer.setSendMsgTimeout(10000);
        producer.start();
        return producer;
    }

    private static DefaultMQPushConsumer consumer(String group, String topic) throws Exception {
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(group);
        consumer.setNamesrvAddr(namesrv);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe(topic, "*");
        return consumer;
    }

    private static void await(CountDownLatch latch, String what) throws Exception {
        if (!latch.await(60, TimeUnit.SECONDS)) throw new IllegalStateException("not within 60 s: " + what);
    }

    private static void delay() throws Exception {
        CountDownLatch latch = new CountDownLatch(7);
        DefaultMQPushConsumer consumer = consumer("GID_delay", "DelayTopic");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            for (MessageExt message : messages) {
                say("delay", "received", "body", body(message));
                latch.countDown();
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        DefaultMQProducer producer = started(new DefaultMQProducer("PID_delay"));
        long now = System.currentTimeMillis();
        Map<Message, Long> dueTimes = new LinkedHashMap<>();
        Message level1 = new Message("DelayTopic", bytes("level 1"));
        level1.setDelayTimeLevel(1);
        dueTimes.put(level1, now + 1000);
        Message level2 = new Message("DelayTopic", bytes("level 2"));
        level2.setDelayTimeLevel(2);
        dueTimes.put(level2, now + 5000);
        Message seconds = new Message("DelayTopic", bytes("2 s"));
        seconds.setDelayTimeSec(2);
        dueTimes.put(seconds, now + 2000);
        Message milliseconds = new Message("DelayTopic", bytes("3500 ms"));
        milliseconds.setDelayTimeMs(3500);
        dueTimes.put(milliseconds, now + 3500);
        Message at = new Message("DelayTopic", bytes("at 4 s"));
        at.setDeliverTimeMs(now + 4000);
        dueTimes.put(at, now + 4000);
        Message past = new Message("DelayTopic", bytes("past"));
        past.setDeliverTimeMs(now - 4000);
        dueTimes.put(past, now);
        Message recalled = new Message("DelayTopic", bytes("recalled"));
        recalled.setDeliverTimeMs(now + 5000);
        dueTimes.put(recalled, now + 5000);
        Message last = new Message("DelayTopic", bytes("at 7 s"));
        last.setDeliverTimeMs(now + 7000);
        dueTimes.put(last, now + 7000);
        for (Message message : dueTimes.keySet()) {
            SendResult result = producer.send(message);
            say("delay", "sent", "body", body(message), "status", result.getSendStatus(), "due_ms", dueTimes.get(message));
            if (message == recalled) {
                String messageId = producer.recallMessage("DelayTopic", result.getRecallHandle());
                say("delay", "recalled", "is_same", messageId.equals(result.getMsgId()));
            }
        }
        await(latch, "delayed messages");
        consumer.shutdown();
        producer.shutdown();
    }

    private static void order() throws Exception {
        DefaultMQProducer producer = started(new DefaultMQProducer("PID_order"));
        for (int i = 0; i < 8; i++) {
            for (int order = 0; order < 3; order++) {
                Message message = new Message("OrderTopic", "TagA", "order-" + order, bytes(order + ":" + i));
                producer.send(message, (queues, m, key) -> queues.get((Integer) key % queues.size()), order);
            }
        }
        // Message 0:3 is suspended twice. Message 1:5 always fails, and goes to the dead-letter queue.
        CountDownLatch latch = new CountDownLatch(23);
        DefaultMQPushConsumer consumer = consumer("GID_order", "OrderTopic");
        consumer.setConsumeMessageBatchMaxSize(1);
        consumer.setMaxReconsumeTimes(2);
        consumer.registerMessageListener((MessageListenerOrderly) (messages, context) -> {
            MessageExt message = messages.get(0);
            int times = message.getReconsumeTimes();
            boolean fails = body(message).equals("0:3") && times < 2 || body(message).equals("1:5");
            say("order", fails ? "suspended" : "received", "body", body(message), "queue", message.getQueueId(), "times", times);
            if (fails) {
                context.setSuspendCurrentQueueTimeMillis(1000);
                return ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT;
            }
            latch.countDown();
            return ConsumeOrderlyStatus.SUCCESS;
        });
        consumer.start();
        await(latch, "ordered messages");
        consumer.shutdown();
        producer.shutdown();
    }

    private static void transaction() throws Exception {
        // The body says what the local transaction returns, and then what each check returns.
        Map<String, AtomicInteger> asked = new ConcurrentHashMap<>();
        TransactionMQProducer producer = new TransactionMQProducer("PID_transaction");
        producer.setTransactionListener(new TransactionListener() {
            private LocalTransactionState next(Message message) {
                String[] states = body(message).split(" ");
                int turn = asked.computeIfAbsent(message.getTransactionId(), key -> new AtomicInteger()).getAndIncrement();
                return LocalTransactionState.valueOf(states[Math.min(turn, states.length - 1)]);
            }

            @Override
            public LocalTransactionState executeLocalTransaction(Message message, Object argument) {
                say("transaction", "executed", "body", body(message));
                return next(message);
            }

            @Override
            public LocalTransactionState checkLocalTransaction(MessageExt message) {
                say("transaction", "checked", "body", body(message), "topic", message.getTopic(),
                    "keys", message.getKeys(), "times", message.getProperty("TRANSACTION_CHECK_TIMES"));
                return next(message);
            }
        });
        CountDownLatch latch = new CountDownLatch(3);
        DefaultMQPushConsumer consumer = consumer("GID_transaction", "TransactionTopic");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            for (MessageExt message : messages) {
                say("transaction", "received", "body", body(message), "keys", message.getKeys(), "tag", message.getTags());
                latch.countDown();
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        started(producer);
        for (String states : new String[] {
            "COMMIT_MESSAGE", "ROLLBACK_MESSAGE", "UNKNOW COMMIT_MESSAGE", "UNKNOW ROLLBACK_MESSAGE", "UNKNOW UNKNOW COMMIT_MESSAGE",
        }) {
            Message message = new Message("TransactionTopic", "TagT", "key " + states.length(), bytes(states));
            SendResult result = producer.sendMessageInTransaction(message, null);
            say("transaction", "sent", "body", states, "status", result.getSendStatus());
        }
        await(latch, "committed messages");
        Thread.sleep(2500); // One more round of checks: nobody is asked again.
        consumer.shutdown();
        producer.shutdown();
    }

    private static void retry() throws Exception {
        // One group takes the broker's times, one names a delay level; a message that fails once is not a dead letter.
        CountDownLatch latch = new CountDownLatch(2 + 3 + 2);
        List<DefaultMQPushConsumer> consumers = new ArrayList<>();
        for (int max = 1; max <= 2; max++) {
            String group = "GID_retry_" + max;
            int level = max == 1 ? 0 : 1;
            DefaultMQPushConsumer consumer = consumer(group, "RetryTopic");
            consumer.setMaxReconsumeTimes(max);
            consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
                MessageExt message = messages.get(0);
                say("retry", group, "body", body(message), "topic", message.getTopic(), "times", message.getReconsumeTimes(),
                    "message_id", message.getMsgId());
                boolean fails = body(message).equals("always") || level == 1 && message.getReconsumeTimes() == 0;
                if (body(message).equals("always") || level == 1) latch.countDown();
                context.setDelayLevelWhenNextConsume(level);
                return fails ? ConsumeConcurrentlyStatus.RECONSUME_LATER : ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
            });
            consumer.start();
            consumers.add(consumer);
        }
        DefaultMQProducer producer = started(new DefaultMQProducer("PID_retry"));
        producer.send(new Message("RetryTopic", "TagR", "always", bytes("always")));
        producer.send(new Message("RetryTopic", "TagR", "once", bytes("once")));
        await(latch, "retried messages");
        Thread.sleep(1500); // A further delivery would come within that time.
        for (DefaultMQPushConsumer consumer : consumers) consumer.shutdown();
        producer.shutdown();
    }

    // The programs of one virtual machine share a client, which leaves a heart-beat out while another one is under way.
    // Then the broker learns of the consumer 30 s later, and the consumer gets its queues up to 20 s after that.
    private static final int REPLY_WITHIN_MS = 55000;

    private static void request() throws Exception {
        DefaultMQProducer replier = started(new DefaultMQProducer("PID_reply"));
        DefaultMQPushConsumer consumer = consumer("GID_request", "RequestTopic");
        // Three replies that are sent, three that arrive, and a time-out. A reply may arrive before its sender is answered.
        CountDownLatch latch = new CountDownLatch(7);
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            for (MessageExt message : messages) {
                try {
                    Message reply = MessageUtil.createReplyMessage(message, bytes("reply to " + body(message)));
                    say("request", "answered", "body", body(message), "status", replier.send(reply, 3000).getSendStatus());
                } catch (Exception e) {
                    say("request", "error", "text", e);
                }
                latch.countDown();
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        // Another instance: a reply goes to the client that asked, and not to the one that answered. Release 5.3.3 ends a
        // request without a callback as soon as the broker has stored it, with a time-out.
        DefaultMQProducer producer = new DefaultMQProducer("PID_request");
        producer.setInstanceName("asker");
        started(producer);
        for (int i = 0; i < 4; i++) {
            boolean isAnswered = i < 3;
            String text = "request " + i;
            producer.request(new Message(isAnswered ? "RequestTopic" : "UnansweredTopic", bytes(text)), new RequestCallback() {
                @Override
                public void onSuccess(Message reply) {
                    say("request", "replied", "body", text, "reply", body(reply));
                    latch.countDown();
                }

                @Override
                public void onException(Throwable e) {
                    say("request", e instanceof RequestTimeoutException ? "timed out" : "error", "body", text, "text", e);
                    latch.countDown();
                }
            }, isAnswered ? REPLY_WITHIN_MS : 1000);
        }
        await(latch, "replies and a time-out");
        consumer.shutdown();
        producer.shutdown();
        replier.shutdown();
    }
}
