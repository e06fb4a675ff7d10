import dataclasses

import pytest

from gantry.remoting.settingnames import camel_case, snake_case
from gantry.runtime.errors import SettingsError, StartupError
from gantry.runtime.settings import load_settings
from services.broker.liveconfig import apply_kept
from services.broker.settings import LIVE_KEYS, BrokerSettings, LiveSettings
from services.broker.store.settings import StoreSettings


def test_defaults_pass_their_own_check() -> None:
    BrokerSettings().check()


def test_every_name_converts_to_rocketmq_and_back() -> None:
    for field in dataclasses.fields(BrokerSettings):
        assert snake_case(camel_case(field.name)) == field.name
    assert camel_case("broker_ip1") == "brokerIP1"
    assert camel_case("wait_time_mills_in_send_queue") == "waitTimeMillsInSendQueue"


def test_a_setting_is_declared_once() -> None:
    of_the_store = {field.name for field in dataclasses.fields(StoreSettings)}
    of_the_broker = BrokerSettings.__annotations__.keys()
    assert of_the_store | of_the_broker == {field.name for field in dataclasses.fields(BrokerSettings)}
    assert not of_the_store & of_the_broker


def test_a_change_of_live_settings_leaves_the_others_as_the_broker_was_started() -> None:
    started = BrokerSettings(broker_permission=4)
    live_settings = LiveSettings(started)
    live_settings.follow(BrokerSettings(max_message_size=5, file_reserved_time=1))
    assert live_settings.current == dataclasses.replace(started, max_message_size=5, broker_permission=6)


def test_a_change_of_every_live_setting_takes_effect() -> None:
    for name in LIVE_KEYS:
        old = getattr(BrokerSettings(), name)
        new = f"{old} 3h" if isinstance(old, str) else (not old) if isinstance(old, bool) else old + 1
        live_settings = LiveSettings(BrokerSettings())
        live_settings.follow(BrokerSettings(**{name: new}))
        assert getattr(live_settings.current, name) == new


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
