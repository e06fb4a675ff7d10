"""`/v1/topics/{topic}/transactions` and `/v1/transactions`: transactional messages.

Rights: a key that may publish to the topic begins, sees and decides its transactions. Those of remoting clients are
decided by an admin only. An admin sees all.
"""

from collections.abc import Callable
from typing import Final, Protocol

from gantry.model.names import check_group, check_topic
from services.gateway.asgi.answer import Answer, json_answer
from services.gateway.asgi.call import Call
from services.gateway.asgi.operation import Endpoint, Operation
from services.gateway.asgi.query import limit_of
from services.gateway.core import Core, Feature
from services.gateway.db.transactions import COMMITTED, HTTP, ROLLED_BACK, STATES, Transaction
from services.gateway.errors import STORED, UNKNOWN, invalid
from services.gateway.features.actor import actor_of
from services.gateway.features.send import detection, idempotency_key_of, refuse_metadata_headers, set_trace
from services.gateway.schemas.transactions import read_transaction
from services.gateway.usecases.sending.send import SendMessages
from services.gateway.usecases.transactions.deliveries import Deliveries
from services.gateway.usecases.transactions.delivery import Delivery
from services.gateway.usecases.transactions.halves import Halves
from services.gateway.usecases.transactions.mirror import TransactionMirror
from services.gateway.usecases.transactions.producers import ProducerGroups
from services.gateway.usecases.transactions.transactions import Transactions
from services.gateway.views.page import page_view
from services.gateway.views.transactions import begun_view, checked_view, decided_view, transaction_view

_FILTER: Final = frozenset({"cursor", "group", "limit", "state", "topic"})


class CheckNow(Protocol):
    """Asks the producers of a transaction (producers.py)."""

    async def __call__(
        self, transaction: str, *, may_decide: Callable[[Transaction], bool]
    ) -> tuple[Transaction, bool]:
        """Return the transaction after the answer, and whether producers were asked. Raises ProblemError."""
        ...


def transaction_feature(core: Core) -> Feature:
    """Return the routes of transactions, and the work that delivers decisions and answers checks."""
    halves = Halves(core.engine, core.brokers)
    producers = ProducerGroups(
        core.engine, core.metadata, core.metrics, halves, has_transactions=lambda: core.due_work.has_transactions
    )
    transactions = Transactions(
        core.metadata,
        core.sending,
        core.engine,
        halves,
        delivery=Delivery(core.engine, core.brokers, halves),
        metrics=core.metrics,
        join=producers.join,
    )
    producers.use(transactions, core.askers)
    deliveries = Deliveries(
        transactions,
        core.metadata,
        core.metrics,
        clock=core.clock,
        keep_days=core.settings.transaction_keep_days,
        due=core.due_work.decisions,
    )
    mirror = TransactionMirror(
        halves,
        core.brokers,
        core.metadata,
        core.metrics,
        interval_ms=core.settings.transaction_mirror_interval_ms,
    )
    return Feature(
        transaction_routes(transactions, core.sending, check_now=producers.check_now),
        background={
            "transaction_deliveries": deliveries.run,
            "transaction_groups": producers.run,
            "transaction_mirror": mirror.run,
        },
    )


def transaction_routes(transactions: Transactions, sending: SendMessages, *, check_now: CheckNow) -> list[Operation]:
    """Return the routes of transactions."""

    async def begin(call: Call) -> Answer:
        topic = call.path_params["topic"]
        sending.check_topic(topic)
        call.principal.require_publish(topic)
        key = idempotency_key_of(call)
        call.require_json()
        refuse_metadata_headers(call, "belong into the JSON of the message")
        call.require_send()
        body = await call.read_body()
        call.count_send(1, len(body))
        new = read_transaction(body)
        set_trace(call, (new.message,))
        if key is not None:
            new.message.idempotency_key = key
        # From here on the broker may have the half message, even if the gateway fails.
        call.outcome = UNKNOWN
        begun = await transactions.begin(topic, new, created_by=call.key_id)
        answer = json_answer(begun_view(begun), 201 if begun.outcome == STORED else 202)
        answer.raw_headers.append((b"location", f"/v1/transactions/{begun.transaction.id}".encode("ascii")))
        answer.raw_headers.append(detection(sending, topic, (new.message,)))
        return answer

    def decide(state: str) -> Endpoint:
        async def endpoint(call: Call) -> Answer:
            row = await transactions.decide(
                call.path_params["transaction"], state, actor_of(call), may_decide=_may_decide(call)
            )
            return json_answer(decided_view(row))

        return endpoint

    async def check(call: Call) -> Answer:
        row, is_asked = await check_now(call.path_params["transaction"], may_decide=_may_decide(call))
        return json_answer(checked_view(row, is_asked=is_asked))

    async def page(call: Call) -> Answer:
        query = call.query
        state, group, topic = query.get("state"), query.get("group"), query.get("topic")
        if state is not None and state not in STATES:
            raise invalid("state", state, f"is not one of {', '.join(STATES)}")
        if group is not None:
            check_group(group)
        if topic is None:
            # Without a topic, the list shows transactions of all topics.
            call.principal.require_viewer()
        else:
            check_topic(topic)
            if not call.principal.sees_all:
                call.principal.require_publish(topic)
        cursor, limit = query.get("cursor"), limit_of(query)
        found = await transactions.page(state=state, group=group, topic=topic, cursor=cursor, limit=limit)
        return json_answer(page_view(found, transaction_view))

    async def show(call: Call) -> Answer:
        return json_answer(
            transaction_view(await transactions.get(call.path_params["transaction"], may_see=_may_see(call)))
        )

    path = "/v1/transactions/{transaction}"
    return [
        Operation("POST", "/v1/topics/{topic}/transactions", begin, is_send=True),
        Operation("POST", f"{path}:commit", decide(COMMITTED), is_empty=True),
        Operation("POST", f"{path}:rollback", decide(ROLLED_BACK), is_empty=True),
        Operation("POST", f"{path}:check", check, is_empty=True),
        Operation("GET", "/v1/transactions", page, _FILTER),
        Operation("GET", "/v1/transactions/{transaction:id}", show),
    ]


def _may_see(call: Call) -> Callable[[Transaction], bool]:
    principal = call.principal
    return lambda row: principal.sees_all or principal.may_publish(row.topic)


def _may_decide(call: Call) -> Callable[[Transaction], bool]:
    principal = call.principal
    return lambda row: principal.is_operator or (row.origin == HTTP and principal.may_publish(row.topic))
