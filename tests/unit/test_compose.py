"""docker-compose.yml and the Dockerfile use only arguments, settings and paths that the programs have."""

import importlib
import re
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import yaml

from gantry.cli.launch import SERVICES
from services.gateway.db import migrate

ROOT = Path(__file__).resolve().parents[2]
COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
DOCKERFILE = (ROOT / "docker" / "Dockerfile").read_text()
OURS = {name: service for name, service in COMPOSE["services"].items() if "build" in service}


def target(service: dict[str, Any]) -> str:
    return str(service["build"]["target"])


def environment(service: dict[str, Any]) -> dict[str, str]:
    """Return a service's environment with compose's `${NAME:-default}` filled in."""
    return {
        name: re.sub(r"\$\{\w+:-(.*?)\}", r"\1", str(value)) for name, value in service.get("environment", {}).items()
    }


def options(service: dict[str, Any]) -> dict[str, str]:
    """Return a command line's options by name; both `--name=value` and `--name value` are used."""
    words = [part for word in service["command"] for part in word.split("=", 1)]
    return dict(zip(words[::2], words[1::2], strict=True))


@pytest.fixture
def quiet_environment(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    import os

    for name in [name for name in os.environ if name.startswith("GANTRY_")]:
        monkeypatch.delenv(name)
    return monkeypatch


@pytest.mark.parametrize("name", [name for name in OURS if target(OURS[name]) not in {"migrate", "spark"}])
def test_a_service_accepts_its_command_line_and_settings(name: str, quiet_environment: pytest.MonkeyPatch) -> None:
    service = OURS[name]
    module = importlib.import_module(f"{SERVICES[target(service)][0]}.__main__")
    started: list[str] = []

    def instead(name: str, main: object, **rest: object) -> int:
        started.append(name)
        return 0

    # The program's own parsing of arguments and settings runs; only the service itself does not.
    quiet_environment.setattr(module, "run_service", instead)
    quiet_environment.setattr(module, "configure_logging", lambda **rest: None)
    for variable, value in environment(service).items():
        quiet_environment.setenv(variable, value)
    quiet_environment.setattr("sys.argv", ["gantry", *map(str, service["command"])])
    assert module.main() == 0
    assert len(started) == 1


def test_the_database_is_migrated(monkeypatch: pytest.MonkeyPatch) -> None:
    service = OURS["migrate"]
    seen: list[str] = []
    monkeypatch.setattr(migrate, "upgrade", lambda url, revision: seen.append(url))
    monkeypatch.setattr(migrate, "current", lambda url: migrate.head())
    assert migrate.main(service["command"], environment=environment(service)) == 0
    assert seen == ["postgresql://gantry:gantry@postgres:5432/gantry"]


def test_a_wrong_setting_would_be_detected(quiet_environment: pytest.MonkeyPatch) -> None:
    module = importlib.import_module("services.namesrv.__main__")
    quiet_environment.setattr(module, "run_service", lambda *args, **rest: 0)
    quiet_environment.setattr(module, "configure_logging", lambda **rest: None)
    quiet_environment.setenv("GANTRY_NAMESRV_NO_SUCH", "1")
    assert module.main([]) == 1
    with pytest.raises(SystemExit):
        module.main(["--no-such"])


def test_the_services_and_their_order() -> None:
    kinds = [target(service) for service in OURS.values()]
    assert {kind: kinds.count(kind) for kind in kinds} == {
        "migrate": 1,
        "namesrv": 2,
        "broker": 2,
        "gateway": 2,
        "spark": 2,
        "scheduler": 1,
    }
    assert COMPOSE["services"]["postgres"]["image"].startswith("postgres:18")


def test_every_target_is_in_the_dockerfile() -> None:
    pattern = r"^FROM runtime(?:-reports)? AS (\w+)\nENTRYPOINT \[\"gantry\", \"(\w+)\"\]$"
    targets = re.findall(pattern, DOCKERFILE, re.MULTILINE)
    assert {name for name, _ in targets} | {"spark"} == {target(service) for service in OURS.values()}
    assert all(name == command and command in SERVICES for name, command in targets)
    assert all(service["build"]["dockerfile"] == "docker/Dockerfile" for service in OURS.values())


def test_files_copied_by_the_dockerfile_exist() -> None:
    for line in re.findall(r"^COPY (?!--from)(.+)$", DOCKERFILE, re.MULTILINE):
        *sources, _ = line.split()
        for source in sources:
            assert (ROOT / source).exists(), source


def test_names_refer_to_existing_things() -> None:
    for name, service in COMPOSE["services"].items():
        assert set(service.get("depends_on", {})) <= set(COMPOSE["services"]), name
        for volume in service.get("volumes", []):
            assert volume.split(":")[0] in COMPOSE["volumes"], volume
    used = {volume.split(":")[0] for service in COMPOSE["services"].values() for volume in service.get("volumes", [])}
    assert used == set(COMPOSE["volumes"])


def test_brokers_and_gateways_know_every_name_server() -> None:
    wanted = {f"{name}:9876" for name, service in OURS.items() if target(service) == "namesrv"}
    for service in OURS.values():
        if target(service) in {"broker", "gateway", "scheduler"}:
            assert set(options(service)["--namesrv"].split(";")) == wanted


def test_brokers_are_identified_and_found() -> None:
    brokers = {name: service for name, service in OURS.items() if target(service) == "broker"}
    for name, service in brokers.items():
        assert options(service)["--name"] == name
        assert options(service)["--advertise"] == service["networks"]["inside"]["ipv4_address"]
    assert len({service["volumes"][0] for service in brokers.values()}) == len(brokers)


def test_every_service_has_a_health_check_on_the_port_it_listens_on() -> None:
    for name, service in COMPOSE["services"].items():
        if name == "migrate":
            continue
        check = " ".join(service["healthcheck"]["test"])
        if name == "scheduler":
            # The service listens on no port.
            assert service["healthcheck"]["test"][-1] == options(service)["--ready-file"]
        elif "build" in service and target(service) != "spark":
            port = options(service)["--listen"].rpartition(":")[2]
            assert re.search(rf"\b{port}\b", check), name


def test_the_spark_image_has_the_installed_version() -> None:
    spec = find_spec("pyspark")
    assert spec is not None
    assert spec.origin is not None
    installed = "/opt/gantry/lib/python3.11/site-packages/pyspark"
    assert f'FROM runtime-reports AS spark\nENTRYPOINT ["{installed}/bin/spark-class"]' in DOCKERFILE
    assert f"ENV SPARK_HOME={installed} " in DOCKERFILE
    assert re.search(r"^FROM python:3\.11-", DOCKERFILE, re.MULTILINE), "the path above names Python's version"
    assert (Path(spec.origin).parent / "bin" / "spark-class").exists()


def test_the_cluster_of_reports_finds_its_parts() -> None:
    master, worker, scheduler = (COMPOSE["services"][name] for name in ("spark-master", "spark-worker", "scheduler"))
    # Spark's own programs do not support `--name=value`.
    assert not [word for word in (*master["command"], *worker["command"]) if word.startswith("--") and "=" in word]
    words = master["command"][1:]
    told = {name.lstrip("-"): value for name, value in zip(words[::2], words[1::2], strict=True)}
    assert told["host"] == "spark-master"
    address = f"spark://{told['host']}:{told['port']}"
    assert worker["command"][-1] == options(scheduler)["--master"] == address
    assert told["port"] in " ".join(master["healthcheck"]["test"])
    web_port = worker["command"][worker["command"].index("--webui-port") + 1]
    assert web_port in " ".join(worker["healthcheck"]["test"])
    assert scheduler["hostname"] == "scheduler"
    assert options(scheduler)["--output"] == scheduler["volumes"][0].partition(":")[2]


def test_a_password_is_never_fixed() -> None:
    passwords = re.findall(r"postgresql://gantry:(.+?)@", (ROOT / "docker-compose.yml").read_text())
    assert passwords == ["${GANTRY_POSTGRES_PASSWORD:-gantry}"]
