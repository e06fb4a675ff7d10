"""The methods of both clients for objectives, alerts and webhooks."""

from typing import Any

from gantry.http import alertcalls
from gantry.http.alertresults import Alert, AlertEvent, Delivery, Objective, Webhook
from gantry.http.baseclient import AsyncBaseClient, BaseClient


class AlertClient(BaseClient):
    """Objectives, alerts and webhooks."""

    def list_objectives(self, *, group: str | None = None) -> list[Objective]:
        """Return all objectives, or those of a group, sorted by group and topic. An objective limits a group's lag."""
        return self._all_pages(lambda cursor: alertcalls.list_objectives(group=group, cursor=cursor))

    def get_objective(self, group: str, *, topic: str | None = None) -> Objective:
        """Return a group's objective for a topic; `topic` None means all topics without an objective of their own."""
        return self.run(alertcalls.get_objective(group, topic=topic))

    def put_objective(
        self, group: str, *, topic: str | None = None, etag: str | None = None, **change: Any
    ) -> Objective:
        """Create or change an objective; `change` has max_lag_seconds, max_lag_messages, ignore, ignore_until, reason."""
        return self.run(alertcalls.put_objective(group, change, topic=topic, etag=etag))

    def delete_objective(self, group: str, *, topic: str | None = None, etag: str | None = None) -> None:
        """Delete an objective; `topic` as in `get_objective`."""
        self.run(alertcalls.delete_objective(group, topic=topic, etag=etag))

    def list_alerts(self, *, group: str | None = None) -> list[Alert]:
        """Return the alerts that are open now, sorted by group and topic."""
        return self._all_pages(lambda cursor: alertcalls.list_alerts(group=group, cursor=cursor))

    def list_alert_events(
        self, *, group: str | None = None, topic: str | None = None, limit: int = 100
    ) -> list[AlertEvent]:
        """Return the events of alerts, such as opened and closed, newest first."""
        return self.run(alertcalls.list_alert_events(group=group, topic=topic, limit=limit)).items

    def list_webhooks(self) -> list[Webhook]:
        """Return all webhooks."""
        return self._all_pages(lambda cursor: alertcalls.list_webhooks(cursor=cursor))

    def create_webhook(self, url: str, **config: Any) -> Webhook:
        """Create a webhook; `config` has groups, verdicts, enabled, secret. Only this answer contains the secret."""
        return self.run(alertcalls.create_webhook({"url": url, **config}))

    def put_webhook(self, webhook: str, **change: Any) -> Webhook:
        """Change the webhook with this id; `change` has url, groups, verdicts, enabled, secret."""
        return self.run(alertcalls.put_webhook(webhook, change))

    def delete_webhook(self, webhook: str) -> None:
        """Delete the webhook with this id and its deliveries."""
        self.run(alertcalls.delete_webhook(webhook))

    def test_webhook(self, webhook: str) -> Delivery:
        """Send a test to the webhook with this id, and return its delivery."""
        return self.run(alertcalls.test_webhook(webhook))

    def list_deliveries(self, webhook: str, *, status: str | None = None, limit: int = 100) -> list[Delivery]:
        """Return a webhook's deliveries, newest first; `status` is `pending`, `delivered` or `failed`, None for all."""
        return self.run(alertcalls.list_deliveries(webhook, status=status, limit=limit)).items


class AsyncAlertClient(AsyncBaseClient):
    """Objectives, alerts and webhooks."""

    async def list_objectives(self, *, group: str | None = None) -> list[Objective]:
        """Return all objectives, or those of a group, sorted by group and topic. An objective limits a group's lag."""
        return await self._all_pages(lambda cursor: alertcalls.list_objectives(group=group, cursor=cursor))

    async def get_objective(self, group: str, *, topic: str | None = None) -> Objective:
        """Return a group's objective for a topic; `topic` None means all topics without an objective of their own."""
        return await self.run(alertcalls.get_objective(group, topic=topic))

    async def put_objective(
        self, group: str, *, topic: str | None = None, etag: str | None = None, **change: Any
    ) -> Objective:
        """Create or change an objective; `change` has max_lag_seconds, max_lag_messages, ignore, ignore_until, reason."""
        return await self.run(alertcalls.put_objective(group, change, topic=topic, etag=etag))

    async def delete_objective(self, group: str, *, topic: str | None = None, etag: str | None = None) -> None:
        """Delete an objective; `topic` as in `get_objective`."""
        await self.run(alertcalls.delete_objective(group, topic=topic, etag=etag))

    async def list_alerts(self, *, group: str | None = None) -> list[Alert]:
        """Return the alerts that are open now, sorted by group and topic."""
        return await self._all_pages(lambda cursor: alertcalls.list_alerts(group=group, cursor=cursor))

    async def list_alert_events(
        self, *, group: str | None = None, topic: str | None = None, limit: int = 100
    ) -> list[AlertEvent]:
        """Return the events of alerts, such as opened and closed, newest first."""
        return (await self.run(alertcalls.list_alert_events(group=group, topic=topic, limit=limit))).items

    async def list_webhooks(self) -> list[Webhook]:
        """Return all webhooks."""
        return await self._all_pages(lambda cursor: alertcalls.list_webhooks(cursor=cursor))

    async def create_webhook(self, url: str, **config: Any) -> Webhook:
        """Create a webhook; `config` has groups, verdicts, enabled, secret. Only this answer contains the secret."""
        return await self.run(alertcalls.create_webhook({"url": url, **config}))

    async def put_webhook(self, webhook: str, **change: Any) -> Webhook:
        """Change the webhook with this id; `change` has url, groups, verdicts, enabled, secret."""
        return await self.run(alertcalls.put_webhook(webhook, change))

    async def delete_webhook(self, webhook: str) -> None:
        """Delete the webhook with this id and its deliveries."""
        await self.run(alertcalls.delete_webhook(webhook))

    async def test_webhook(self, webhook: str) -> Delivery:
        """Send a test to the webhook with this id, and return its delivery."""
        return await self.run(alertcalls.test_webhook(webhook))

    async def list_deliveries(self, webhook: str, *, status: str | None = None, limit: int = 100) -> list[Delivery]:
        """Return a webhook's deliveries, newest first; `status` is `pending`, `delivered` or `failed`, None for all."""
        return (await self.run(alertcalls.list_deliveries(webhook, status=status, limit=limit))).items
