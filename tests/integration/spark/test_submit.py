"""`spark-submit` as docs/internals/clusters.md has it: on one machine for real, on others as far as it goes without them."""

import json
import sys
from pathlib import Path

import pytest

from spark.jobs.arguments import make_parser, read_arguments
from tests.support.kubernetes import ApiServer
from tests.support.sparkjobs import skip_without_java
from tests.support.submit import JOBS, documented, submit

SCRIPT = str(JOBS / "lag_report.py")

pytestmark = pytest.mark.timeout(240)


@pytest.fixture(autouse=True)
def _java() -> None:
    skip_without_java()


def arguments_of(words: list[str]) -> list[str]:
    """Return the arguments after the script; the job can parse them."""
    at = next(index for index, word in enumerate(words) if word.endswith("lag_report.py"))
    given = words[at + 1 :]
    read_arguments(make_parser("lag_report", ""), given, {"PYSPARK_GATEWAY_PORT": "1"})
    return given


def test_kubernetes_is_given_a_driver_with_our_script_and_arguments(tmp_path: Path) -> None:
    with ApiServer() as server:
        words = documented(
            "k8s://https://HOST:6443",
            **{"https://HOST:6443": server.url, "PACKAGES": "/opt/packages", "REGISTRY": "registry:5000"},
        )
        given = arguments_of(words)
        # The API server of the test never reports the end of the pod.
        told = ("--conf", "spark.kubernetes.submission.waitAppCompletion=false")
        ended = submit(*told, *words, extra={"KUBECONFIG": str(tmp_path / "none")})
        assert ended.returncode == 0, ended.stderr[-3000:]
    (pod,) = (content for kind, content in server.made if kind == "Pod")
    (container,) = pod["spec"]["containers"]
    at = container["args"].index("--class")
    script = "local:///opt/packages/spark/jobs/lag_report.py"
    assert container["args"][at + 1 :] == ["org.apache.spark.deploy.PythonRunner", script, *given]
    assert container["image"] == "registry:5000/gantry-spark"
    assert pod["spec"]["serviceAccountName"] == "spark"
    (database,) = (one["valueFrom"] for one in container["env"] if one["name"] == "GANTRY_DATABASE_URL")
    assert database == {"secretKeyRef": {"name": "gantry-database", "key": "url"}}
    assert "ConfigMap" in dict(server.made), "the settings, for the driver and its executors"


def test_yarn_would_be_given_our_script_and_arguments(tmp_path: Path) -> None:
    (tmp_path / "yarn-site.xml").write_text(
        "<configuration>"
        "<property><name>yarn.resourcemanager.address</name><value>127.0.0.1:1</value></property>"
        "<property><name>yarn.resourcemanager.connect.max-wait.ms</name><value>1</value></property>"
        "<property><name>yarn.resourcemanager.connect.retry-interval.ms</name><value>1</value></property>"
        "<property><name>ipc.client.connect.max.retries</name><value>0</value></property>"
        "</configuration>"
    )
    archive = tmp_path / "python.tar.gz"
    archive.write_bytes(b"")
    # spark-submit looks for the archive before it calls anybody.
    words = documented("yarn", **{"hdfs:///gantry/python.tar.gz": f"file://{archive}"})
    given = arguments_of(words)
    ended = submit("--verbose", *words, extra={"HADOOP_CONF_DIR": str(tmp_path)})
    assert "Connection refused" in ended.stderr, ended.stderr[-3000:]
    said = (ended.stdout + ended.stderr).splitlines()
    main = said.index("Main class:")
    assert said[main + 1] == "org.apache.spark.deploy.yarn.YarnClusterApplication"
    told = said[said.index("Arguments:", main) + 1 : said.index("Spark config:", main)]
    as_arguments = [word for one in given for word in ("--arg", one)]
    assert told == [
        "--primary-py-file",
        f"file:{SCRIPT}",
        "--class",
        "org.apache.spark.deploy.PythonRunner",
        *as_arguments,
    ]
    for setting in (
        f"(spark.yarn.dist.archives,file://{archive}#python)",
        "(spark.yarn.appMasterEnv.PYSPARK_PYTHON,./python/bin/python)",
        "(spark.executorEnv.PYSPARK_PYTHON,./python/bin/python)",
        "(spark.master,yarn)",
    ):
        assert setting in said


SHOWN = """
import json, sys
from spark.session import SessionSettings, open_session
session = open_session("code", settings=SessionSettings(shuffle_partitions=7, is_brief=True))
context = session.sparkContext
print("FOUND " + json.dumps([dict(context.getConf().getAll()), context.master, context.pythonExec, session.sql("SELECT 1 AS one").toArrow().to_pylist()]))
session.stop()
"""


def test_what_spark_submit_was_told_wins(tmp_path: Path) -> None:
    script = tmp_path / "shown.py"
    script.write_text(SHOWN)
    told = {
        "spark.sql.shuffle.partitions": "3",
        "spark.ui.showConsoleProgress": "true",
        "spark.sql.warehouse.dir": f"file:{tmp_path}/warehouse",
        "spark.driver.host": "localhost",
        "spark.driver.bindAddress": "127.0.0.9",
        "spark.sql.python.filterPushdown.enabled": "false",
        "spark.sql.execution.arrow.pyspark.enabled": "false",
        "spark.ui.enabled": "false",
        "spark.driver.extraJavaOptions": "-XX:+UseSerialGC",
        "spark.driver.memory": "512m",
        "spark.executor.memory": "600m",
    }
    words = [word for name, value in told.items() for word in ("--conf", f"{name}={value}")]
    zone = ("--conf", "spark.sql.session.timeZone=Asia/Tokyo")
    ended = submit("--master", "local[3]", "--name", "said", *words, *zone, str(script), extra={})
    assert ended.returncode == 0, ended.stderr[-3000:]
    (line,) = (line for line in ended.stdout.splitlines() if line.startswith("FOUND "))
    conf, master, python, rows = json.loads(line.removeprefix("FOUND "))
    # Spark puts options of its own before those.
    own = conf["spark.driver.extraJavaOptions"].removesuffix(told["spark.driver.extraJavaOptions"])
    assert "log4j2" not in own
    conf["spark.driver.extraJavaOptions"] = conf["spark.driver.extraJavaOptions"].removeprefix(own)
    assert {name: conf[name] for name in told} == told
    assert (master, conf["spark.app.name"], rows) == ("local[3]", "said", [{"one": 1}])
    assert python == sys.executable, "workers need the packages, which another Python of their path may not have"
    assert conf["spark.sql.session.timeZone"] == "UTC", "buckets are those of UTC"


def test_a_job_under_spark_submit_has_no_master_of_its_own(tmp_path: Path) -> None:
    ended = submit("--master", "local[1]", SCRIPT, "--master", "local[2]", extra={})
    assert ended.returncode == 2
    # spark-submit gives the program one stream for both.
    assert "lag_report: error: --master: say it to spark-submit, before the name of this program" in ended.stdout
