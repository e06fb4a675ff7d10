"""The store: CommitLog, ConsumeQueues, IndexFiles and what keeps them whole. `messagestore` is its face."""
