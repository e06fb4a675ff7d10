"""The processes that `gantry up` starts, as a table."""

from pathlib import Path

import pytest

from gantry.cli.stack.layout import BROKERS_MAX, PORT_BASE_MAX, Layout, StackOptions, broker_names
from gantry.runtime.errors import StartupError

DATA = Path("/var/lib/gantry")


def layout(**changed: object) -> Layout:
    return Layout(StackOptions(data=DATA, **changed), exists=lambda path: False)  # type: ignore[arg-type]


def listens(stack: Layout) -> dict[str, tuple[int, ...]]:
    return {service.name: service.ports for service in stack.services()}


def test_default_ports() -> None:
    assert listens(layout()) == {
        "namesrv-0": (9876, 9883),
        "broker-a": (10911, 10909, 10918),
        "broker-b": (10931, 10929, 10938),
        "gateway-0": (8080,),
    }


def test_the_port_base_moves_all() -> None:
    moved = listens(layout(port_base=3_000, brokers=1))
    assert moved == {"namesrv-0": (12876, 12883), "broker-a": (13911, 13909, 13918), "gateway-0": (11080,)}


def test_an_ipv6_address_is_written_in_brackets() -> None:
    stack = layout(host="::1", advertise="fd00::1", brokers=1)
    assert (stack.namesrv_addresses, stack.http) == (["[fd00::1]:9876"], "http://[fd00::1]:8080")
    assert stack.brokers[0].address == "[fd00::1]:10911"
    assert [service.arguments[1] for service in stack.services()] == ["[::1]:9876", "[::1]:10911", "[::1]:8080"]


def test_stacks_one_port_step_apart_share_no_port() -> None:
    used: set[int] = set()
    for base in range(0, 20_000, 1_000):
        ports = [port for ports in listens(layout(port_base=base, brokers=BROKERS_MAX)).values() for port in ports]
        assert len(set(ports)) == len(ports)
        assert not used & set(ports)
        used |= set(ports)


def test_the_highest_base_has_room_for_every_port() -> None:
    stack = layout(port_base=PORT_BASE_MAX, brokers=BROKERS_MAX)
    assert max(max(ports) for ports in listens(stack).values()) <= 65_535


def test_a_broker_gets_all_its_arguments() -> None:
    service = layout(brokers=2, port_base=1_000, advertise="10.0.0.7", host="0.0.0.0").broker(1)
    assert (service.module, service.name) == ("services.broker", "broker-b")
    assert service.arguments == (
        *("--listen", "0.0.0.0:11931"),
        *("--namesrv", "10.0.0.7:10876"),
        *("--name", "broker-b"),
        *("--cluster", "DefaultCluster"),
        *("--advertise", "10.0.0.7"),
        *("--store", "/var/lib/gantry/broker-b"),
        *("--ready-file", "/var/lib/gantry/ready/broker-b.json"),
    )


def test_the_scheduler_gets_its_addresses_and_has_no_port() -> None:
    stack = Layout(StackOptions(data=DATA, port_base=1_000), exists=lambda path: path.name == "scheduler.toml")
    service = stack.scheduler()
    assert (service.name, service.module, service.ports) == ("scheduler", "spark.scheduler", ())
    assert service.arguments == (
        *("--namesrv", "127.0.0.1:10876"),
        *("--output", "/var/lib/gantry/reports"),
        *("--config", "/var/lib/gantry/scheduler.toml"),
        *("--ready-file", "/var/lib/gantry/ready/scheduler.json"),
    )


def test_a_settings_file_is_used_if_it_exists() -> None:
    stack = Layout(StackOptions(data=DATA), exists=lambda path: path.name == "broker.toml")
    assert "/var/lib/gantry/broker.toml" in stack.broker(0).arguments
    assert "--config" not in stack.namesrv().arguments


def test_a_real_database_needs_no_disk_here() -> None:
    assert layout(database_url="postgresql://db/gantry").disk_bytes() < layout().disk_bytes()
    assert layout(brokers=4).disk_bytes() > layout(brokers=2).disk_bytes()


def test_brokers_are_named_by_letters() -> None:
    assert broker_names(3) == ["broker-a", "broker-b", "broker-c"]
    assert broker_names(BROKERS_MAX)[-1] == "broker-z"


@pytest.mark.parametrize(
    "changed", [{"brokers": 0}, {"brokers": 27}, {"port_base": 500}, {"port_base": -1_000}, {"port_base": 55_000}]
)
def test_options_out_of_range_are_refused(changed: dict[str, int]) -> None:
    (name,) = changed
    with pytest.raises(StartupError, match=f"--{name.replace('_', '-')} {changed[name]}"):
        StackOptions(data=DATA, **changed).check()
