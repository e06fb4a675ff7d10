import dataclasses

import pytest

from gantry.remoting.settingnames import camel_case, snake_case
from gantry.runtime.errors import SettingsError, StartupError
from gantry.runtime.settings import load_settings
from services.broker.liveconfig import apply_kept
from services.broker.policy import Policy
from services.broker.settings import BrokerSettings
from services.broker.store.settings import StoreSettings


def test_defaults_pass_their_own_check() -> None:
    BrokerSettings().check()


def test_every_name_converts_to_rocketmq_and_back() -> None:
    for field in dataclasses.fields(BrokerSettings):
        assert snake_case(camel_case(field.name)) == field.name
    assert camel_case("broker_ip1") == "brokerIP1"
    assert camel_case("wait_time_mills_in_send_queue") == "waitTimeMillsInSendQueue"


def test_the_defaults_of_the_store_are_the_same_here() -> None:
    assert BrokerSettings().store() == StoreSettings(root_dir="store")
    assert BrokerSettings(file_reserved_time=5, enabled_append_prop_crc=False).store() == StoreSettings(
        file_reserved_time_hours=5, record_checksum=False
    )


def test_every_switch_has_a_setting() -> None:
    policy = Policy()
    policy.follow(BrokerSettings(max_message_size=5))
    assert policy == Policy(max_message_size=5)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"broker_name": "a b"}, "broker_name: 'a b'"),
        ({"region_id": 'x"'}, "region_id"),
        ({"listen_port": 70_000}, "listen_port: 70000"),
        ({"fast_listen_port": "soon"}, "fast_listen_port: 'soon'"),
        ({"metrics_port": "soon"}, "metrics_port: 'soon'"),
        ({"broker_id": 1}, "broker_id: 1: only a master"),
        ({"broker_permission": 8}, "broker_permission: 8"),
        ({"short_polling_time_mills": 0}, "short_polling_time_mills: 0 is less than 1"),
        ({"tls_server_cert_path": "x"}, "tls_server_cert_path"),
        ({"tls_server_mode": "enforcing"}, "tls_server_mode"),
        ({"store_path_root_dir": ""}, "store_path_root_dir: is empty"),
        ({"delete_when": "25"}, "delete_when: '25'"),
    ],
)
def test_invalid_settings_are_named(changes: dict[str, object], reason: str) -> None:
    with pytest.raises(SettingsError, match=reason):
        load_settings(BrokerSettings, service="broker", environment={}, overrides=changes)


def test_the_fast_port_follows_the_port_by_default() -> None:
    assert BrokerSettings(listen_port=10_911).fast_port() == 10_909
    assert BrokerSettings(listen_port=0).fast_port() is None
    assert BrokerSettings(fast_listen_port="off").fast_port() is None
    assert BrokerSettings(fast_listen_port="0").fast_port() == 0


def test_name_servers_are_a_list() -> None:
    assert BrokerSettings(namesrv_addr="a:1; b:2,a:1;").name_servers() == ("a:1", "b:2")
    assert BrokerSettings().name_servers() == ()


def test_kept_settings_lie_over_the_file_and_below_the_command_line() -> None:
    kept = {"default_topic_queue_nums": "4", "broker_name": "other"}
    settings = apply_kept(BrokerSettings(broker_name="mine"), kept, above={"broker_name"})
    assert (settings.default_topic_queue_nums, settings.broker_name) == (4, "mine")
    for wrong in ({"no_such": "1"}, {"listen_port": "x"}, {"broker_permission": "9"}):
        with pytest.raises(StartupError, match=r"gantry-settings\.json in the store: .*or remove the file"):
            apply_kept(BrokerSettings(), wrong, above=())
