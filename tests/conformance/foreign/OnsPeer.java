// A program of a user of Alibaba Cloud's Java client: delay, order and transactions, one JSON object a line on stdout.
import static java.nio.charset.StandardCharsets.UTF_8;

import com.aliyun.openservices.ons.api.Action;
import com.aliyun.openservices.ons.api.Consumer;
import com.aliyun.openservices.ons.api.Message;
import com.aliyun.openservices.ons.api.ONSFactory;
import com.aliyun.openservices.ons.api.Producer;
import com.aliyun.openservices.ons.api.PropertyKeyConst;
import com.aliyun.openservices.ons.api.order.OrderAction;
import com.aliyun.openservices.ons.api.order.OrderConsumer;
import com.aliyun.openservices.ons.api.order.OrderProducer;
import com.aliyun.openservices.ons.api.transaction.TransactionProducer;
import com.aliyun.openservices.ons.api.transaction.TransactionStatus;
import java.util.Properties;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;

public class OnsPeer {
    private static String namesrv;

    public static void main(String[] args) {
        namesrv = args[0];
        try {
            run();
            System.exit(0);
        } catch (Throwable e) { // Client threads would keep the process alive.
            e.printStackTrace();
            System.exit(1);
        }
    }

    private static void say(String program, String event, String body) {
        String line = "{\"program\":\"" + program + "\",\"event\":\"" + event + "\",\"body\":\"" + body + "\",\"at_ms\":";
        synchronized (System.out) { System.out.println(line + System.currentTimeMillis() + "}"); }
    }

    private static Properties properties(String group) {
        Properties properties = new Properties();
        properties.setProperty(PropertyKeyConst.NAMESRV_ADDR, namesrv);
        properties.setProperty(PropertyKeyConst.GROUP_ID, group);
        properties.setProperty(PropertyKeyConst.AccessKey, "access");
        properties.setProperty(PropertyKeyConst.SecretKey, "secret");
        properties.setProperty(PropertyKeyConst.SuspendTimeMillis, "1000");
        properties.setProperty(PropertyKeyConst.MaxReconsumeTimes, "3");
        return properties;
    }

    private static Message message(String topic, String body) { return new Message(topic, "TagA", body.getBytes(UTF_8)); }

    private static String body(Message message) { return new String(message.getBody(), UTF_8); }

    private static void run() throws Exception {
        CountDownLatch delayed = new CountDownLatch(2);
        CountDownLatch ordered = new CountDownLatch(10);
        CountDownLatch committed = new CountDownLatch(2);

        Consumer consumer = ONSFactory.createConsumer(properties("GID_ons"));
        consumer.subscribe("OnsDelayTopic", "*", (message, context) -> {
            say("delay", "received", body(message));
            delayed.countDown();
            return Action.CommitMessage;
        });
        consumer.subscribe("OnsTransactionTopic", "*", (message, context) -> {
            say("transaction", "received", body(message));
            committed.countDown();
            return Action.CommitMessage;
        });
        consumer.start();
        OrderConsumer orderConsumer = ONSFactory.createOrderedConsumer(properties("GID_ons_order"));
        orderConsumer.subscribe("OnsOrderTopic", "*", (message, context) -> {
            boolean fails = body(message).equals("A:2") && message.getReconsumeTimes() == 0;
            say("order", fails ? "suspended" : "received", body(message));
            if (fails) return OrderAction.Suspend;
            ordered.countDown();
            return OrderAction.Success;
        });
        orderConsumer.start();

        Producer producer = ONSFactory.createProducer(properties("GID_ons_producer"));
        producer.start();
        for (int seconds = 2; seconds <= 3; seconds++) {
            Message message = message("OnsDelayTopic", "after " + seconds + " s");
            message.setStartDeliverTime(System.currentTimeMillis() + 1000 * seconds);
            say("delay", "sending", body(message));
            producer.send(message);
        }
        OrderProducer orderProducer = ONSFactory.createOrderProducer(properties("GID_ons_order_producer"));
        orderProducer.start();
        for (int i = 0; i < 5; i++) {
            for (String key : new String[] {"A", "B"}) orderProducer.send(message("OnsOrderTopic", key + ":" + i), key);
        }
        TransactionProducer transactionProducer = ONSFactory.createTransactionProducer(properties("GID_ons_transaction"), message -> {
            say("transaction", "checked", body(message));
            return body(message).equals("unknown, rollback") ? TransactionStatus.RollbackTransaction : TransactionStatus.CommitTransaction;
        });
        transactionProducer.start();
        for (String body : new String[] {"commit", "rollback", "unknown, commit", "unknown, rollback"}) {
            TransactionStatus status = body.equals("commit") ? TransactionStatus.CommitTransaction
                : body.equals("rollback") ? TransactionStatus.RollbackTransaction : TransactionStatus.Unknow;
            try {
                transactionProducer.send(message("OnsTransactionTopic", body), (message, argument) -> status, null);
                say("transaction", "sent", body);
            } catch (RuntimeException e) { // This client reports a rollback so.
                say("transaction", "rolled back", body);
            }
        }
        for (CountDownLatch latch : new CountDownLatch[] {delayed, ordered, committed}) {
            if (!latch.await(60, TimeUnit.SECONDS)) throw new IllegalStateException("not all received in 60 s");
        }
        Thread.sleep(2500); // One more round of checks: nobody is asked again.
        consumer.shutdown();
        orderConsumer.shutdown();
        producer.shutdown();
        orderProducer.shutdown();
        transactionProducer.shutdown();
    }
}
