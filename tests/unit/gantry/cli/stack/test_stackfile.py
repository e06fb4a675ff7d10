"""stack.json: the keys that scripts, examples and tests read."""

from pathlib import Path

from gantry.cli.stack.layout import Layout, StackOptions
from gantry.cli.stack.stackfile import stack_content


def test_the_content_is_what_the_contract_says() -> None:
    layout = Layout(StackOptions(data=Path("/d"), brokers=1, port_base=1_000))
    content = stack_content(
        layout, api_key="k", postgres="postgresql://gantry@/gantry?host=/d/run", processes=[("namesrv-0", 7)]
    )
    assert content == {
        "http": "http://127.0.0.1:9080",
        "api_key": "k",
        "namesrv": ["127.0.0.1:10876"],
        "brokers": [
            {
                "cluster": "DefaultCluster",
                "name": "broker-a",
                "id": 0,
                "address": "127.0.0.1:11911",
                "store": "/d/broker-a",
            }
        ],
        "postgres": "postgresql://gantry@/gantry?host=/d/run",
        "console": {"url": "http://127.0.0.1:9080/console", "user": "admin", "password_file": "/d/admin-password"},
        "processes": [{"name": "namesrv-0", "pid": 7}],
    }
