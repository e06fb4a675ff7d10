"""Topics, groups and subscriptions: the desired state in Postgres, the observed state on brokers."""
