"""Settings of the name server, and which of them a request may change."""

import pytest

from gantry.remoting.aio.tls import TlsMode
from gantry.remoting.settingnames import camel_case, snake_case
from gantry.runtime.errors import SettingsError
from gantry.runtime.settings import load_settings
from services.namesrv.errors import ForbiddenError, RefusedError
from services.namesrv.settings import CHANGEABLE, NamesrvSettings, to_properties


def load(**environment: str) -> NamesrvSettings:
    names = {f"GANTRY_NAMESRV_{name.upper()}": text for name, text in environment.items()}
    return load_settings(NamesrvSettings, service="namesrv", environment=names)


def test_defaults_are_loopback_and_a_scan_each_ten_seconds():
    settings = load()
    assert settings.listen_address == ("127.0.0.1", 9876)
    assert settings.scan_not_active_broker_interval == 10_000
    assert settings.kv_config_file == ".gantry/namesrv/kvConfig.json"
    assert settings.tls is None


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("listen", "9876"),
        ("listen", ":9876"),
        ("listen", "127.0.0.1:x"),
        ("listen", "127.0.0.1:65536"),
        ("metrics_port", "maybe"),
        ("scan_not_active_broker_interval", "0"),
        ("wait_seconds_for_service", "-1"),
        ("topics_max", "0"),
        ("tls_server_cert_path", "cert.pem"),
        ("tls_server_mode", "enforcing"),
        ("tls_server_mode", "perhaps"),
        ("order_message_enable", "perhaps"),
        ("no_such_setting", "1"),
    ],
)
def test_invalid_settings_are_refused_by_name(name: str, text: str):
    with pytest.raises(SettingsError, match=f"(?i){name}"):
        load(**{name: text})


def test_an_ipv6_address_is_given_in_brackets():
    assert load(listen="[::1]:9876").listen_address == ("::1", 9876)


def test_tls_needs_a_certificate_and_can_be_switched_off():
    files = {"tls_server_cert_path": "c.pem", "tls_server_key_path": "k.pem"}
    tls = load(**files).tls
    assert tls is not None
    assert (tls.cert_file, tls.key_file, tls.mode) == ("c.pem", "k.pem", TlsMode.PERMISSIVE)
    assert load(**files, tls_server_mode="disabled").tls is None


@pytest.mark.parametrize("name", sorted(CHANGEABLE))
def test_names_convert_to_the_wire_and_back(name: str):
    assert snake_case(camel_case(name)) == name


def test_properties_are_shown_under_rocketmqs_names():
    shown = dict(to_properties(load(listen="127.0.0.1:0", data="d")))
    assert shown["listenPort"] == "0"
    assert shown["bindAddress"] == "127.0.0.1"
    assert shown["scanNotActiveBrokerInterval"] == "10000"
    assert shown["orderMessageEnable"] == "true"
    assert shown["kvConfigPath"] == "d/kvConfig.json"
    assert shown["configBlackList"] == "configBlackList;configStorePath;kvConfigPath"


def test_a_request_changes_what_may_change_and_ignores_unknown_names():
    settings, taken = load().changed({"waitSecondsForService": "46", "orderMessageEnable": "false", "whatever": "1"})
    assert (settings.wait_seconds_for_service, settings.order_message_enable) == (46, False)
    assert taken == {"wait_seconds_for_service": "46", "order_message_enable": "false"}


def test_all_shown_settings_may_be_sent_back():
    settings = load()
    shown = {name: text for name, text in to_properties(settings) if name not in settings.config_black_list}
    assert settings.changed(shown)[0] == settings


def test_the_forbidden_list_and_the_port_can_not_be_changed():
    with pytest.raises(ForbiddenError, match="kvConfigPath"):
        load().changed({"kvConfigPath": "/tmp/x"})
    with pytest.raises(ForbiddenError, match="listenPort"):
        load().changed({"listenPort": "1"})


@pytest.mark.parametrize("text", ["soon", "-1"])
def test_a_wrong_value_is_refused_by_name(text: str):
    with pytest.raises(RefusedError, match="wait_seconds_for_service"):
        load().changed({"waitSecondsForService": text})
