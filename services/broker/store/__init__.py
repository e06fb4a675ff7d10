"""The store: CommitLog, ConsumeQueues, IndexFiles and their recovery. `messagestore` is its interface."""
