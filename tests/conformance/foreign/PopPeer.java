// A program of a user of Apache RocketMQ's Java client: two push consumers of one group in pop mode. It prints one JSON
// object a line on stdout.
import static java.nio.charset.StandardCharsets.UTF_8;

import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

public class PopPeer {
    private static final Set<String> failed = ConcurrentHashMap.newKeySet();
    private static CountDownLatch latch;

    public static void main(String[] args) throws Exception {
        int count = Integer.parseInt(args[1]);
        latch = new CountDownLatch(count);
        DefaultMQPushConsumer one = consumer(args[0], "one");
        DefaultMQPushConsumer two = consumer(args[0], "two");
        Thread.sleep(3000); // Both have begun to pop.
        DefaultMQProducer producer = new DefaultMQProducer("PID_pop");
        producer.setNamesrvAddr(args[0]);
        producer.start();
        for (int i = 0; i < count; i++) {
            String tag = i % 2 == 0 ? "even" : "odd";
            producer.send(new Message("PopTopic", tag, "key" + i, ("m" + i).getBytes(UTF_8)));
            producer.send(new Message("PopTopic", "unwanted", "key" + i, "unwanted".getBytes(UTF_8)));
        }
        boolean done = latch.await(60, TimeUnit.SECONDS);
        Thread.sleep(2000); // A second delivery of an acknowledged message would come within that time.
        one.shutdown();
        two.shutdown();
        producer.shutdown();
        System.exit(done ? 0 : 1);
    }

    private static DefaultMQPushConsumer consumer(String namesrv, String name) throws Exception {
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer("GID_pop");
        consumer.setNamesrvAddr(namesrv);
        consumer.setInstanceName(name);
        consumer.setClientRebalance(false);
        consumer.setPopInvisibleTime(20000);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe("PopTopic", "even || odd");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            for (MessageExt message : messages) {
                String body = new String(message.getBody(), UTF_8);
                boolean fails = body.equals("m3") && failed.add(body);
                synchronized (System.out) {
                    System.out.println("{\"consumer\":\"" + name + "\",\"body\":\"" + body + "\",\"topic\":\"" + message.getTopic()
                        + "\",\"times\":" + message.getReconsumeTimes() + ",\"fails\":" + fails
                        + ",\"at_ms\":" + System.currentTimeMillis() + "}");
                }
                if (fails) return ConsumeConcurrentlyStatus.RECONSUME_LATER;
                latch.countDown();
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        return consumer;
    }
}
