"""Alerts, and the webhooks that receive them."""
