"""Consumption retry: messages that a consumer sends back, the retry topics of groups, and dead letters."""
