"""ConsumeQueues: the messages of each queue, in order."""
