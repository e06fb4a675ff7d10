"""Settings of the name server: RocketMQ's names in snake_case, and Gantry's own settings.

A request (UPDATE_NAMESRV_CONFIG) may change the settings in CHANGEABLE while the server runs. The changes are kept in
the data folder. At the next start they override the file and the environment.
"""

from dataclasses import dataclass, fields, replace

from gantry.remoting.aio.tls import ClientAuth, TlsMode, TlsSettings, tls_settings
from gantry.remoting.settingnames import camel_case, snake_case
from gantry.runtime.errors import SettingsError
from gantry.runtime.hostport import split_host_port
from gantry.runtime.metrics import choose_metrics_port
from gantry.runtime.settings import parse_value
from services.namesrv.errors import ForbiddenError, RefusedError
from services.namesrv.routetable import BROKERS_MAX, TOPICS_MAX

CHANGEABLE = frozenset(
    {
        "scan_not_active_broker_interval",
        "order_message_enable",
        "return_order_topic_config_to_broker",
        "support_acting_master",
        "enable_all_topic_list",
        "enable_topic_list",
        "notify_min_broker_id_changed",
        "need_wait_for_service",
        "wait_seconds_for_service",
        "delete_topic_with_broker_registration",
    }
)


@dataclass(frozen=True, slots=True)
class NamesrvSettings:
    """All settings of a name server.

    A setting without a unit in its name has RocketMQ's name and unit; a comment gives the unit.
    """

    listen: str = "127.0.0.1:9876"
    data: str = ".gantry/namesrv"
    metrics_port: str = "auto"
    metrics_host: str = "127.0.0.1"

    scan_not_active_broker_interval: int = 10_000  # ms; 5.x scans every 5 s, 4.x every 10.
    order_message_enable: bool = True  # RocketMQ: off. ADR-0028.
    return_order_topic_config_to_broker: bool = True
    support_acting_master: bool = False
    enable_all_topic_list: bool = True
    enable_topic_list: bool = True
    notify_min_broker_id_changed: bool = False
    need_wait_for_service: bool = False
    wait_seconds_for_service: int = 45  # s
    delete_topic_with_broker_registration: bool = False
    config_black_list: str = "configBlackList;configStorePath;kvConfigPath"
    kv_config_path: str | None = None  # None: kvConfig.json in the data folder.
    server_channel_max_idle_time_seconds: int = 120  # s

    tls_server_mode: TlsMode = TlsMode.PERMISSIVE  # Has an effect only with a certificate.
    tls_server_cert_path: str | None = None
    tls_server_key_path: str | None = None
    tls_server_trust_cert_path: str | None = None
    tls_server_need_client_auth: ClientAuth = ClientAuth.NONE

    brokers_max: int = BROKERS_MAX
    topics_max: int = TOPICS_MAX
    drain_timeout_ms: int = 3_000

    def check(self) -> None:
        """Raise ValueError if a setting is invalid. The message names the setting."""
        _, port = self.listen_address
        choose_metrics_port(self.metrics_port, listen_port=port)
        for name in (
            "scan_not_active_broker_interval",
            "server_channel_max_idle_time_seconds",
            "brokers_max",
            "topics_max",
        ):
            if getattr(self, name) <= 0:
                raise ValueError(f"{name}: {getattr(self, name)} is not above 0")
        for name in ("wait_seconds_for_service", "drain_timeout_ms"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name}: {getattr(self, name)} is below 0")
        _ = self.tls

    @property
    def listen_address(self) -> tuple[str, int]:
        """Host and port of `listen`. Raises ValueError if it is not HOST:PORT."""
        return split_host_port(self.listen, field="listen")

    @property
    def kv_config_file(self) -> str:
        """Path of the file that keeps the key-values."""
        return self.kv_config_path or f"{self.data}/kvConfig.json"

    @property
    def changes_file(self) -> str:
        """Path of the file that keeps the settings changed by request."""
        return f"{self.data}/namesrv-settings.json"

    @property
    def tls(self) -> TlsSettings | None:
        """TLS settings, or None if TLS is disabled or there is no certificate. Raises ValueError."""
        return tls_settings(
            mode=self.tls_server_mode,
            cert_path=self.tls_server_cert_path,
            key_path=self.tls_server_key_path,
            trust_cert_path=self.tls_server_trust_cert_path,
            client_auth=self.tls_server_need_client_auth,
        )

    def changed(self, properties: dict[str, str]) -> tuple["NamesrvSettings", dict[str, str]]:
        """Return the settings after a request's changes, and the applied changes by their snake_case names.

        Args:
            properties: Texts by RocketMQ's names. Unknown names are ignored, as in RocketMQ, because tools send back
                everything that they have read.

        Raises:
            ForbiddenError: A setting is on the black list, or can't change while the server runs.
            RefusedError: A value can't be parsed or is invalid.
        """
        forbidden = {name.strip() for name in self.config_black_list.split(";")} & properties.keys()
        if forbidden:
            raise ForbiddenError(f"Can not update config in black list. ({', '.join(sorted(forbidden))})")
        current = dict(to_properties(self))
        taken: dict[str, str] = {}
        for wire_name, text in properties.items():
            name = snake_case(wire_name)
            if name in CHANGEABLE:
                taken[name] = text
            elif wire_name in current and current[wire_name] != text:
                raise ForbiddenError(f"{wire_name} can not change while the name server runs")
        return apply_changes(self, taken), taken


def apply_changes(settings: NamesrvSettings, changes: dict[str, str]) -> NamesrvSettings:
    """Return a copy of the settings with these changes, given as texts by snake_case names.

    Raises:
        RefusedError: A value can't be parsed or is invalid.
    """
    try:
        settings = replace(
            settings, **{name: parse_value(NamesrvSettings, name, text) for name, text in changes.items()}
        )
        settings.check()
    except (SettingsError, ValueError) as error:
        raise RefusedError(str(error)) from None
    return settings


def to_properties(settings: NamesrvSettings) -> list[tuple[str, str]]:
    """Return the reply to GET_NAMESRV_CONFIG: the settings that RocketMQ has too, under its names, sorted."""
    host, port = settings.listen_address
    current = {
        camel_case(field.name): _to_text(getattr(settings, field.name))
        for field in fields(settings)
        if field.name in CHANGEABLE or field.name in ("config_black_list", "server_channel_max_idle_time_seconds")
    }
    current["bindAddress"] = host
    current["listenPort"] = str(port)
    current["kvConfigPath"] = settings.kv_config_file
    current["configStorePath"] = settings.changes_file
    return sorted(current.items())


def _to_text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
