// Apache RocketMQ's Java client, driven by the tests: one scenario a run, one JSON object a line on stdout.
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.Set;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.rocketmq.client.consumer.DefaultLitePullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.MessageSelector;
import org.apache.rocketmq.client.consumer.PullResult;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.LocalTransactionState;
import org.apache.rocketmq.client.producer.SendCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.TransactionListener;
import org.apache.rocketmq.client.producer.TransactionMQProducer;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.compression.CompressionType;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;
import org.apache.rocketmq.tools.command.MQAdminStartup;

public class RocketmqPeer {
    public static void main(String[] args) {
        try {
            run(args);
            System.exit(0);
        } catch (Throwable e) { // Client threads would keep the process alive.
            e.printStackTrace();
            System.exit(1);
        }
    }

    private static void run(String[] args) throws Exception {
        String namesrv = args[1];
        switch (args[0]) {
            case "produce": produce(namesrv, args[2], Integer.parseInt(args[3])); break;
            case "forms": forms(namesrv, args[2]); break;
            case "repeat": repeat(namesrv, args[2]); break;
            case "stream": stream(namesrv, args[2]); break;
            case "push": push(namesrv, args[2], args[3], args[4], Integer.parseInt(args[5]), true); break;
            case "pop": push(namesrv, args[2], args[3], args[4], Integer.parseInt(args[5]), false); break;
            case "consume": consume(namesrv, args[2], args[3]); break;
            case "litepull": litePull(namesrv, args[2], args[3], Integer.parseInt(args[4])); break;
            case "pull": pull(namesrv, args[2], args[3]); break;
            case "mqadmin": mqadmin(args); break;
            default: throw new IllegalArgumentException(args[0]);
        }
    }

    // Several mqadmin commands in one virtual machine, which takes longer to start than any of them to run.
    private static void mqadmin(String[] args) {
        List<String> command = new ArrayList<>();
        for (int i = 1; i <= args.length; i++) {
            if (i < args.length && !args[i].equals("--then")) { command.add(args[i]); continue; }
            System.out.println("=== " + String.join(" ", command));
            MQAdminStartup.main0(command.toArray(new String[0]), null);
            command.clear();
        }
    }

    private static String quote(String text) {
        if (text == null) return "null";
        StringBuilder out = new StringBuilder("\"");
        for (char c : text.toCharArray()) {
            if (c == '"' || c == '\\' || c < 0x20 || c > 0x7e) out.append(String.format("\\u%04x", (int) c));
            else out.append(c);
        }
        return out.append('"').toString();
    }

    private static synchronized void sent(String how, SendResult r) {
        System.out.println("{\"how\":" + quote(how) + ",\"status\":" + quote(r.getSendStatus().name())
            + ",\"message_id\":" + quote(r.getMsgId()) + ",\"stored_id\":" + quote(r.getOffsetMsgId())
            + ",\"queue_id\":" + r.getMessageQueue().getQueueId() + ",\"queue_offset\":" + r.getQueueOffset() + "}");
    }

    private static synchronized void received(MessageExt m) {
        System.out.println("{\"message_id\":" + quote(m.getMsgId()) + ",\"queue_id\":" + m.getQueueId()
            + ",\"queue_offset\":" + m.getQueueOffset() + ",\"tag\":" + quote(m.getTags()) + ",\"keys\":" + quote(m.getKeys())
            + ",\"body\":" + quote(new String(m.getBody(), StandardCharsets.UTF_8)) + "}");
    }

    private static void produce(String namesrv, String topic, int count) throws Exception {
        DefaultMQProducer producer = new DefaultMQProducer("PID_foreign");
        producer.setNamesrvAddr(namesrv);
        producer.setSendMsgTimeout(10000);
        producer.start();
        for (int i = 0; i < count; i++) {
            byte[] body = ("sync-" + i).getBytes(StandardCharsets.UTF_8);
            sent("sync", producer.send(new Message(topic, i % 2 == 0 ? "TagA" : "TagB", "key-" + i, body)));
        }
        String large = "x".repeat(20000);
        sent("compressed", producer.send(new Message(topic, "TagA", "large", large.getBytes(StandardCharsets.UTF_8))));
        List<Message> batch = new ArrayList<>();
        for (int i = 0; i < 10; i++) batch.add(new Message(topic, "TagC", "batch-" + i, ("batch-" + i).getBytes()));
        sent("batch", producer.send(batch));
        CountDownLatch latch = new CountDownLatch(count);
        for (int i = 0; i < count; i++) {
            producer.send(new Message(topic, "TagA", "async-" + i, ("async-" + i).getBytes()), new SendCallback() {
                public void onSuccess(SendResult r) { sent("async", r); latch.countDown(); }
                public void onException(Throwable e) { System.out.println("{\"error\":" + quote(e.toString()) + "}"); latch.countDown(); }
            });
        }
        latch.await(30, TimeUnit.SECONDS);
        producer.sendOneway(new Message(topic, "TagA", "oneway", "one-way".getBytes()));
        sent("ordered", producer.send(new Message(topic, "TagA", "ordered", "ordered".getBytes()),
            (queues, message, key) -> queues.get(Math.abs(key.hashCode() % queues.size())), "N14228"));
        Thread.sleep(500);
        producer.shutdown();
    }

    // A batch, a message with each compression, and one that does not wait for the disk.
    private static void forms(String namesrv, String topic) throws Exception {
        List<Message> batch = new ArrayList<>();
        for (int i = 0; i < 3; i++) batch.add(new Message(topic, "plain", ("java-batch-" + i).getBytes()));
        for (CompressionType type : CompressionType.values()) {
            DefaultMQProducer producer = new DefaultMQProducer("PID_forms_" + type);
            producer.setNamesrvAddr(namesrv);
            producer.setInstanceName(type.name());
            producer.setSendMsgTimeout(10000);
            producer.setCompressType(type);
            producer.start();
            String tag = type == CompressionType.ZLIB ? "plain" : "modern";
            sent("compressed", producer.send(new Message(topic, tag, ("java-" + type + "-" + "z".repeat(9000)).getBytes())));
            if (type == CompressionType.ZLIB) {
                sent("batch", producer.send(batch));
                Message unsafe = new Message(topic, "plain", "java-no-wait".getBytes());
                unsafe.setWaitStoreMsgOK(false);
                sent("no-wait", producer.send(unsafe));
            }
            producer.shutdown();
        }
    }

    // The answer to each of these sends may be lost. A send that waits for its answer is repeated by the client. If the
    // connection ends while another thread opens a new one, the client does not notice it for the requests of the old one, so
    // each request has a time-out of its own. An asynchronous send has none, so its callback sends the message again.
    private static void repeat(String namesrv, String topic) throws Exception {
        TransactionMQProducer producer = new TransactionMQProducer("PID_repeat");
        producer.setNamesrvAddr(namesrv);
        producer.setSendMsgTimeout(40000);
        producer.setSendMsgMaxTimeoutPerRequest(4000);
        producer.setRetryTimesWhenSendFailed(5);
        producer.setTransactionListener(new TransactionListener() {
            public LocalTransactionState executeLocalTransaction(Message m, Object o) { return LocalTransactionState.COMMIT_MESSAGE; }
            public LocalTransactionState checkLocalTransaction(MessageExt m) { return LocalTransactionState.UNKNOW; }
        });
        producer.start();
        sent("sync", producer.send(new Message(topic, "sync".getBytes())));
        sendUntilAnswered(producer, new Message(topic, "async".getBytes()));
        List<Message> batch = new ArrayList<>();
        for (int i = 0; i < 3; i++) batch.add(new Message(topic, ("batch-" + i).getBytes()));
        sent("batch", producer.send(batch));
        sent("transaction", producer.sendMessageInTransaction(new Message(topic, "transaction".getBytes()), null));
        Thread.sleep(500); // The commit is one-way.
        producer.shutdown();
    }

    private static void sendUntilAnswered(DefaultMQProducer producer, Message message) throws Exception {
        for (int i = 0; i < 5; i++) {
            CompletableFuture<SendResult> result = new CompletableFuture<>();
            producer.send(message, new SendCallback() {
                public void onSuccess(SendResult r) { result.complete(r); }
                public void onException(Throwable e) { result.completeExceptionally(e); }
            }, 4000);
            try {
                sent("async", result.get(30, TimeUnit.SECONDS));
                return;
            } catch (ExecutionException e) { failed("async", e.getCause()); }
        }
    }

    // Sends until the standard input ends: two threads that wait for each answer, and one that does not.
    private static void stream(String namesrv, String topic) throws Exception {
        DefaultMQProducer producer = new DefaultMQProducer("PID_stream");
        producer.setNamesrvAddr(namesrv);
        producer.setPollNameServerInterval(1000);
        producer.setSendMsgTimeout(10000);
        producer.start();
        AtomicBoolean ended = new AtomicBoolean();
        AtomicInteger pending = new AtomicInteger();
        List<Thread> threads = new ArrayList<>();
        for (String how : new String[] {"sync-a", "sync-b", "async"}) {
            Thread thread = new Thread(() -> {
                for (int i = 0; !ended.get(); i++) {
                    String body = how + "-" + i;
                    Message message = new Message(topic, body.getBytes());
                    try {
                        if (!how.equals("async")) placed(body, producer.send(message));
                        else {
                            pending.incrementAndGet();
                            producer.send(message, new SendCallback() {
                                public void onSuccess(SendResult r) { placed(body, r); pending.decrementAndGet(); }
                                public void onException(Throwable e) { failed(body, e); pending.decrementAndGet(); }
                            });
                        }
                        Thread.sleep(5);
                    } catch (Exception e) { failed(body, e); }
                }
            });
            threads.add(thread);
            thread.start();
        }
        while (System.in.read() >= 0) { } // The test closes it.
        ended.set(true);
        for (Thread thread : threads) thread.join();
        for (int i = 0; pending.get() > 0 && i < 300; i++) Thread.sleep(100);
        System.out.println("{\"pending\":" + pending.get() + "}");
        producer.shutdown();
    }

    private static synchronized void placed(String body, SendResult r) {
        System.out.println("{\"body\":" + quote(body) + ",\"status\":" + quote(r.getSendStatus().name())
            + ",\"broker\":" + quote(r.getMessageQueue().getBrokerName()) + ",\"queue_id\":" + r.getMessageQueue().getQueueId()
            + ",\"queue_offset\":" + r.getQueueOffset() + "}");
    }

    private static synchronized void failed(String body, Throwable e) {
        System.out.println("{\"body\":" + quote(body) + ",\"error\":" + quote(e.toString()) + "}");
    }

    private static void push(String namesrv, String topic, String group, String filter, int count, boolean rebalances)
            throws Exception {
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(group);
        consumer.setClientRebalance(rebalances);
        consumer.setNamesrvAddr(namesrv);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        if (filter.startsWith("sql:")) consumer.subscribe(topic, MessageSelector.bySql(filter.substring(4)));
        else consumer.subscribe(topic, filter);
        CountDownLatch latch = new CountDownLatch(count);
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            for (MessageExt message : messages) { received(message); latch.countDown(); }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        boolean all = latch.await(60, TimeUnit.SECONDS);
        consumer.shutdown();
        System.out.println("{\"all\":" + all + "}");
    }

    // Consumes until it is killed, a message in about 10 ms, so that a large part of a queue is always left.
    private static void consume(String namesrv, String topic, String group) throws Exception {
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(group);
        consumer.setNamesrvAddr(namesrv);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe(topic, "*");
        consumer.setConsumeThreadMin(1);
        consumer.setConsumeThreadMax(1);
        consumer.setPullThresholdForQueue(64);
        consumer.setPersistConsumerOffsetInterval(500);
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            for (MessageExt message : messages) received(message);
            try { Thread.sleep(10); } catch (InterruptedException ignored) { return ConsumeConcurrentlyStatus.RECONSUME_LATER; }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        Thread.sleep(Long.MAX_VALUE);
    }

    private static void litePull(String namesrv, String topic, String group, int count) throws Exception {
        DefaultLitePullConsumer consumer = new DefaultLitePullConsumer(group);
        consumer.setNamesrvAddr(namesrv);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe(topic, "*");
        consumer.start();
        long deadline = System.currentTimeMillis() + 60000;
        for (int got = 0; got < count && System.currentTimeMillis() < deadline;) {
            for (MessageExt message : consumer.poll(1000)) { received(message); got++; }
        }
        consumer.commitSync();
        consumer.shutdown();
    }

    // A Java broker tells its name server of its topics about ten seconds after its start.
    @SuppressWarnings("deprecation")
    private static Set<MessageQueue> queues(DefaultMQPullConsumer consumer, String topic) throws Exception {
        long deadline = System.currentTimeMillis() + 60000;
        while (true) {
            try {
                return consumer.fetchSubscribeMessageQueues(topic);
            } catch (MQClientException e) {
                if (System.currentTimeMillis() > deadline) throw e;
                Thread.sleep(500);
            }
        }
    }

    @SuppressWarnings("deprecation")
    private static void pull(String namesrv, String topic, String group) throws Exception {
        DefaultMQPullConsumer consumer = new DefaultMQPullConsumer(group);
        consumer.setNamesrvAddr(namesrv);
        consumer.start();
        for (MessageQueue queue : queues(consumer, topic)) {
            long offset = consumer.minOffset(queue);
            long end = consumer.maxOffset(queue);
            while (offset < end) {
                PullResult result = consumer.pull(queue, "*", offset, 32);
                if (result.getMsgFoundList() != null) result.getMsgFoundList().forEach(RocketmqPeer::received);
                offset = result.getNextBeginOffset();
            }
            consumer.updateConsumeOffset(queue, offset);
        }
        consumer.shutdown();
    }
}
