// Apache RocketMQ's Go client, driven by the tests: one scenario a run, one JSON object a line on stdout.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/apache/rocketmq-client-go/v2"
	"github.com/apache/rocketmq-client-go/v2/consumer"
	"github.com/apache/rocketmq-client-go/v2/primitive"
	"github.com/apache/rocketmq-client-go/v2/producer"
	"github.com/apache/rocketmq-client-go/v2/rlog"
)

func main() {
	rlog.SetLogLevel("error")
	scenarios := map[string]func(namesrv string, args []string) error{
		"produce": produce, "forms": forms, "repeat": repeat, "transactions": transactions, "push": push, "orderly": orderly,
	}
	if err := scenarios[os.Args[1]](os.Args[2], os.Args[3:]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

var printing sync.Mutex

func say(fields map[string]any) {
	line, err := json.Marshal(fields)
	if err != nil {
		panic(err)
	}
	printing.Lock()
	defer printing.Unlock()
	fmt.Println(string(line))
}

func sent(how string, r *primitive.SendResult) {
	say(map[string]any{
		"how": how, "status": int(r.Status), "message_id": r.MsgID, "stored_id": r.OffsetMsgID,
		"queue_id": r.MessageQueue.QueueId, "queue_offset": r.QueueOffset,
	})
}

func received(m *primitive.MessageExt) {
	say(map[string]any{
		"message_id": m.MsgId, "queue_id": m.Queue.QueueId, "queue_offset": m.QueueOffset, "tag": m.GetTags(),
		"keys": m.GetKeys(), "body": string(m.Body), "weight": m.GetProperty("weight"), "reconsume_times": m.ReconsumeTimes,
	})
}

func resolver(namesrv string) primitive.NsResolver {
	return primitive.NewPassthroughResolver([]string{namesrv})
}

func options(namesrv, group string) []producer.Option {
	return []producer.Option{
		producer.WithNsResolver(resolver(namesrv)), producer.WithGroupName(group), producer.WithInstanceName(group),
		producer.WithRetry(2), producer.WithSendMsgTimeout(10 * time.Second),
	}
}

func startedProducer(namesrv, group string, more ...producer.Option) (rocketmq.Producer, error) {
	p, err := rocketmq.NewProducer(append(options(namesrv, group), more...)...)
	if err != nil {
		return nil, err
	}
	return p, p.Start()
}

func message(topic, tag, body string) *primitive.Message {
	return primitive.NewMessage(topic, []byte(body)).WithTag(tag)
}

func batchOf(topic, tag, prefix string, count int) []*primitive.Message {
	var batch []*primitive.Message
	for i := 0; i < count; i++ {
		batch = append(batch, message(topic, tag, fmt.Sprintf("%s-%d", prefix, i)))
	}
	return batch
}

// produce TOPIC COUNT sends in every way that the client has.
func produce(namesrv string, args []string) error {
	topic := args[0]
	count, err := strconv.Atoi(args[1])
	if err != nil {
		return err
	}
	p, err := startedProducer(namesrv, "PID_go")
	if err != nil {
		return err
	}
	defer p.Shutdown()
	ctx := context.Background()
	send := func(how string, messages ...*primitive.Message) error {
		r, err := p.SendSync(ctx, messages...)
		if err == nil {
			sent(how, r)
		}
		return err
	}
	for i := 0; i < count; i++ {
		m := message(topic, []string{"TagA", "TagB"}[i%2], fmt.Sprintf("sync-%d", i))
		m.WithKeys([]string{fmt.Sprintf("key-%d", i)}).WithProperty("weight", strconv.Itoa(i))
		if err := send("sync", m); err != nil {
			return err
		}
	}
	if err := send("compressed", message(topic, "TagA", strings.Repeat("x", 20000))); err != nil {
		return err
	}
	if err := send("batch", batchOf(topic, "TagC", "batch", 10)...); err != nil {
		return err
	}
	var pending sync.WaitGroup
	for i := 0; i < count; i++ {
		pending.Add(1)
		err := p.SendAsync(ctx, func(_ context.Context, r *primitive.SendResult, err error) {
			defer pending.Done()
			if err != nil {
				say(map[string]any{"error": err.Error()})
			} else {
				sent("async", r)
			}
		}, message(topic, "TagA", fmt.Sprintf("async-%d", i)))
		if err != nil {
			return err
		}
	}
	pending.Wait()
	return p.SendOneWay(ctx, message(topic, "TagA", "one-way"))
}

// forms TOPIC sends a batch, a compressed message, and one that does not wait for the disk.
func forms(namesrv string, args []string) error {
	topic := args[0]
	p, err := startedProducer(namesrv, "PID_go_forms")
	if err != nil {
		return err
	}
	defer p.Shutdown()
	unsafe := message(topic, "plain", "go-no-wait")
	unsafe.WithProperty(primitive.PropertyWaitStoreMsgOk, "false")
	sends := map[string][]*primitive.Message{
		"batch":      batchOf(topic, "plain", "go-batch", 3),
		"compressed": {message(topic, "plain", "go-ZLIB-"+strings.Repeat("z", 9000))},
		"no-wait":    {unsafe},
	}
	for how, messages := range sends {
		r, err := p.SendSync(context.Background(), messages...)
		if err != nil {
			return err
		}
		sent(how, r)
	}
	return nil
}

// repeat TOPIC: the answer to each of these sends may be lost. The client sends the message again by itself. It gives the
// messages of a batch no keys; those of the second batch have keys of their own.
func repeat(namesrv string, args []string) error {
	p, err := startedProducer(namesrv, "PID_go_repeat", producer.WithSendMsgTimeout(3*time.Second))
	if err != nil {
		return err
	}
	defer p.Shutdown()
	keyed := batchOf(args[0], "TagA", "keyed", 3)
	for _, m := range keyed {
		m.WithProperty(primitive.PropertyUniqueClientMessageIdKeyIndex, primitive.CreateUniqID())
	}
	for how, messages := range map[string][]*primitive.Message{
		"sync": {message(args[0], "TagA", "sync")}, "batch": batchOf(args[0], "TagA", "batch", 3), "keyed": keyed,
	} {
		r, err := p.SendSync(context.Background(), messages...)
		if err != nil {
			return err
		}
		sent(how, r)
	}
	return nil
}

type listener struct{}

func (listener) ExecuteLocalTransaction(m *primitive.Message) primitive.LocalTransactionState {
	switch string(m.Body) {
	case "committed":
		return primitive.CommitMessageState
	case "rolled back":
		return primitive.RollbackMessageState
	default:
		return primitive.UnkonwnState
	}
}

func (listener) CheckLocalTransaction(m *primitive.MessageExt) primitive.LocalTransactionState {
	say(map[string]any{"checked": string(m.Body)})
	return primitive.CommitMessageState
}

// transactions TOPIC commits one message, rolls one back, and decides one when the broker asks; it ends with its input.
func transactions(namesrv string, args []string) error {
	p, err := rocketmq.NewTransactionProducer(listener{}, options(namesrv, "PID_go_transactions")...)
	if err != nil {
		return err
	}
	if err := p.Start(); err != nil {
		return err
	}
	defer p.Shutdown()
	for _, body := range []string{"committed", "rolled back", "checked"} {
		r, err := p.SendMessageInTransaction(context.Background(), message(args[0], "TagA", body))
		if err != nil {
			return err
		}
		sent(body, r.SendResult)
	}
	_, err = os.Stdin.Read(make([]byte, 1))
	if err != nil && err.Error() != "EOF" {
		return err
	}
	return nil
}

// push TOPIC GROUP FILTER COUNT consumes so many messages. The first delivery of the body "retried" fails.
func push(namesrv string, args []string) error {
	return consume(namesrv, args, consumer.WithConsumerOrder(false))
}

// orderly TOPIC GROUP FILTER COUNT consumes so many messages, those of each queue in order.
func orderly(namesrv string, args []string) error {
	return consume(namesrv, args, consumer.WithConsumerOrder(true))
}

func consume(namesrv string, args []string, more ...consumer.Option) error {
	topic, group, filter := args[0], args[1], args[2]
	count, err := strconv.Atoi(args[3])
	if err != nil {
		return err
	}
	settings := []consumer.Option{
		consumer.WithNsResolver(resolver(namesrv)), consumer.WithGroupName(group),
		consumer.WithConsumeFromWhere(consumer.ConsumeFromFirstOffset),
	}
	c, err := rocketmq.NewPushConsumer(append(settings, more...)...)
	if err != nil {
		return err
	}
	selector := consumer.MessageSelector{Type: consumer.TAG, Expression: filter}
	if sql, ok := strings.CutPrefix(filter, "sql:"); ok {
		selector = consumer.MessageSelector{Type: consumer.SQL92, Expression: sql}
	}
	got := make(chan struct{}, 10*count)
	err = c.Subscribe(topic, selector, func(_ context.Context, messages ...*primitive.MessageExt) (consumer.ConsumeResult, error) {
		for _, m := range messages {
			if string(m.Body) == "retried" && m.ReconsumeTimes == 0 {
				return consumer.ConsumeRetryLater, nil
			}
			received(m)
			got <- struct{}{}
		}
		return consumer.ConsumeSuccess, nil
	})
	if err != nil {
		return err
	}
	if err := c.Start(); err != nil {
		return err
	}
	defer c.Shutdown()
	deadline := time.After(60 * time.Second)
	for i := 0; i < count; i++ {
		select {
		case <-got:
		case <-deadline:
			say(map[string]any{"all": false})
			return nil
		}
	}
	say(map[string]any{"all": true})
	return nil
}
