"""The producers of a topic, merged from the answers of its brokers."""

from collections.abc import Mapping

import pytest

from gantry.client.engine import ClientEngine
from gantry.remoting.bodies.producers import TopicProducer, TopicProducers
from gantry.remoting.codes import RequestCode, ResponseCode
from services.gateway.errors import ProblemError
from services.gateway.usecases.cluster.brokers import Brokers
from services.gateway.usecases.operations import producers
from services.gateway.usecases.operations.producers import Producers, merge
from tests.support.scriptedpeer import ScriptedCluster, ScriptedTransport, ok, refuse

CODE = RequestCode.GANTRY_TOPIC_PRODUCERS


def row(group: str, client_id: str | None, address: str = "10.0.0.1:1", sent_at: int = 10) -> TopicProducer:
    return TopicProducer(
        address=address, client_id=client_id, group=group, language="JAVA", sent_at=sent_at, version=479
    )


def answers(**rows: list[TopicProducer]) -> Mapping[str, TopicProducers]:
    return {name: TopicProducers(is_truncated=False, producers=some) for name, some in rows.items()}


def test_an_instance_on_two_brokers_is_one_producer_with_its_last_message() -> None:
    found = merge(
        answers(
            b=[row("pg", "one", "10.0.0.1:2", sent_at=30)],
            a=[row("pg", "one", "10.0.0.1:1", sent_at=20), row("pg", "two", sent_at=40)],
        ),
        gateway_group="GATE",
    )
    assert [(one.client_id, one.address, one.brokers, one.sent_at_ms) for one in found] == [
        ("two", "10.0.0.1:1", ["a"], 40),
        ("one", "10.0.0.1:1", ["a", "b"], 30),
    ]


def test_groups_of_an_instance_and_unknown_instances_are_producers_of_their_own() -> None:
    found = merge(
        answers(
            a=[row("pg", "one"), row("pg2", "one"), row("pg", None), row("pg", None, "10.0.0.1:2")], b=[row("pg", None)]
        ),
        gateway_group="GATE",
    )
    assert [(one.group, one.client_id, one.address, one.brokers) for one in found] == [
        ("pg", None, "10.0.0.1:1", ["a"]),
        ("pg", None, "10.0.0.1:1", ["b"]),
        ("pg", None, "10.0.0.1:2", ["a"]),
        ("pg", "one", "10.0.0.1:1", ["a"]),
        ("pg2", "one", "10.0.0.1:1", ["a"]),
    ]


def test_a_gateway_is_told_by_its_group() -> None:
    found = merge(answers(a=[row("GATE", "g"), row("pg", "one")]), gateway_group="GATE")
    assert [one.is_gateway for one in found] == [True, False]


@pytest.fixture
def two(cluster: ScriptedCluster, transport: ScriptedTransport) -> ScriptedTransport:
    """Brokers a and b; b does not have the topic."""
    cluster.topic("T", "a", "b")
    body = TopicProducers(is_truncated=False, producers=[row("pg", "one"), row("pg", "two", sent_at=20)]).encode()
    transport.at("a:10911", {CODE: lambda request: ok(request, body=body)})
    transport.at("b:10911", {CODE: refuse(ResponseCode.TOPIC_NOT_EXIST)})
    return transport


async def test_a_broker_without_the_topic_has_no_producer(
    engine: ClientEngine, brokers: Brokers, two: ScriptedTransport
) -> None:
    report = await Producers(engine, brokers, gateway_group="GATE").of("T")
    assert ([one.client_id for one in report.producers], report.missing, report.is_truncated) == (
        ["two", "one"],
        [],
        False,
    )


async def test_a_broker_that_does_not_tell_is_named(
    engine: ClientEngine, brokers: Brokers, two: ScriptedTransport
) -> None:
    """RocketMQ's brokers do not know the request."""
    two.at("b:10911", {CODE: refuse(ResponseCode.REQUEST_CODE_NOT_SUPPORTED)})
    report = await Producers(engine, brokers, gateway_group="GATE").of("T")
    assert len(report.producers) == 2
    [reason] = report.missing
    assert reason.startswith("broker b: ")
    two.at("a:10911", {CODE: refuse(ResponseCode.SYSTEM_BUSY)})
    with pytest.raises(ProblemError) as caught:
        await Producers(engine, brokers, gateway_group="GATE").of("T")
    assert caught.value.status == 503


async def test_the_report_says_that_there_may_be_more(
    engine: ClientEngine, brokers: Brokers, two: ScriptedTransport, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(producers, "PRODUCERS_MAX", 1)
    report = await Producers(engine, brokers, gateway_group="GATE").of("T")
    assert ([one.client_id for one in report.producers], report.is_truncated) == (["two"], True)
    monkeypatch.undo()
    body = TopicProducers(is_truncated=True, producers=[]).encode()
    two.at("b:10911", {CODE: lambda request: ok(request, body=body)})
    assert (await Producers(engine, brokers, gateway_group="GATE").of("T")).is_truncated
