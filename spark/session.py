"""One way to open a Spark session, for every job, test and notebook.

What it sees to: the Java that will do (java.py), Python workers that are the running interpreter, loopback when Spark
runs on this machine only, times in UTC, Arrow between Spark and Python, no web page and no chatter unless asked for, the
data source `gantry` registered, and our own code on the workers of a cluster.

Times: `collect()` turns a timestamp into a naive datetime of the *machine's* zone, whatever the session's; `toArrow()`
keeps UTC. Code that leaves Spark should take the second.
"""

import atexit
import sys
import tempfile
import warnings
from collections.abc import Mapping, MutableMapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import pyspark
from pyspark import SparkConf, SparkContext
from pyspark.sql import SparkSession

from gantry.runtime.environment import cpu_count, process_environment
from gantry.runtime.errors import SettingsError
from gantry.runtime.osfilesystem import OsFileSystem
from spark.classarchive import AUTO, archive_folder, archive_key, find_archive, reading_options, writing_options
from spark.java import Java, find_java
from spark.master import UNDER_SUBMIT, is_local_master
from spark.shipping import as_py_file, pack_code

LOOPBACK: Final = "127.0.0.1"
PANDAS_WARNING: Final = "PySpark does not yet fully support pandas"
BRIEF_JVM: Final = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")
DRIVER_MEMORY: Final = "768m"
"""The JVM's heap in local mode. A profile of 2 million messages with two Python workers then takes well below 2 GiB in all,
and is no slower than with twice as much."""
OURS_ALWAYS: Final = frozenset({"spark.sql.session.timeZone"})
"""Settings that win over those of spark-submit: the buckets of hours and days are in UTC."""
OF_THE_START: Final = frozenset({"spark.driver.memory", "spark.driver.extraJavaOptions"})
"""Settings that matter when a JVM starts. spark-submit has started the JVM already."""
SPARK_HOME: Final = Path(pyspark.__file__).parent
LOG_SETTINGS: Final = Path(__file__).with_name("log4j2.properties")


@dataclass(frozen=True, slots=True)
class SessionSettings:
    """What a session may use; the defaults are a report's on the machine of `gantry up`."""

    driver_memory: str | None = None
    """The JVM's heap; the process takes about 300 MiB more. None: DRIVER_MEMORY in local mode; on a cluster the value of
    spark-defaults.conf, or Spark's default."""
    executor_memory: str | None = None
    """The heap of each executor of a cluster; None as above. Local mode has no executor but the driver."""
    shuffle_partitions: int | None = None
    """Partitions behind a shuffle. None: two a core in local mode (Spark's 200 cost more to start than to run), Spark's
    own default on a cluster."""
    is_brief: bool = False
    """Whether it lives for a minute, as a job's does. Its JVM then compiles in one quick step and collects garbage in one
    thread: on two cores a sixth of a job's time would go into what pays off later. In local mode only."""
    has_source: bool = True
    """Whether the data source `gantry` is registered at once. It takes a second, since Spark first looks for others in a
    Python process; a job that may do without registers it when it reads (register_data_source)."""
    class_archive: str = AUTO
    """The folder with Spark's classes ready for the JVM (classarchive.py), "auto" or "off". In local mode only."""
    written_archive: str | None = None
    """A file into which the JVM writes the classes that it has loaded when it ends; then it reads no archive."""
    ui: bool = False
    """Spark's web page. It listens on a port and asks nobody who they are."""
    py_files: tuple[str, ...] = ()
    """Wheels, zips or .py files for the workers of a cluster. None given: the packages this process runs are packed."""
    extra: Mapping[str, str] = field(default_factory=dict)
    """Any further `spark.…` setting; wins over what is set here."""

    def check(self) -> None:
        """Raise ValueError with "field: reason" where a value can't be meant."""
        if self.shuffle_partitions is not None and self.shuffle_partitions < 1:
            raise ValueError(f"shuffle_partitions: {self.shuffle_partitions} is not at least 1")
        for key in self.extra:
            if not key.startswith("spark."):
                raise ValueError(f"extra: {key!r} is no setting of Spark, those start with 'spark.'")


def open_session(app: str, *, master: str | None = "local[*]", settings: SessionSettings | None = None) -> SparkSession:
    """Open a Spark session, or return the one this process has.

    Args:
        app: Its name, for Spark's logs and pages.
        master: "local[…]", "spark://host:port", "yarn", …; None under spark-submit, which has said it already.
        settings: None: the defaults. The settings of spark-submit (`--conf`, `--properties-file`, its other options,
            spark-defaults.conf) win over them, except over OURS_ALWAYS.

    Raises:
        JavaNotFoundError: This machine has no Java that starts Spark; the message says what to install.
        SettingsError: A setting can't be meant.

    Concurrency: a process has one session; open and stop it in one thread. Changes this process's environment.
    """
    settings = SessionSettings() if settings is None else settings
    try:
        settings.check()
    except ValueError as error:
        raise SettingsError(str(error)) from None
    environment = process_environment()
    submitted = _submitted_settings() if UNDER_SUBMIT in environment else {}
    is_local = is_local_master(submitted.get("spark.master") or master or "")
    jvm_options: Sequence[str] = ()
    if UNDER_SUBMIT not in environment:
        java = find_java(environment)
        prepare_environment(environment, is_local=is_local, java_home=java.home)
        jvm_options = _archive_options(settings, java, environment) if is_local else ()
    # Nobody who reads a report can do anything about it; our tests run with the version it speaks of.
    warnings.filterwarnings("ignore", message=PANDAS_WARNING, category=FutureWarning)
    builder = SparkSession.builder.appName(submitted.get("spark.app.name", app))
    if master is not None:
        builder = builder.master(master)
    for key, value in spark_settings(settings, is_local=is_local, cores=cpu_count(), jvm_options=jvm_options).items():
        if not submitted or key in OURS_ALWAYS or key not in {*submitted, *OF_THE_START}:
            builder = builder.config(key, value)
    session = builder.getOrCreate()
    if not is_local:
        folder = tempfile.TemporaryDirectory(prefix="gantry-spark-", ignore_cleanup_errors=True)
        # At the end and not sooner: workers fetch what lies here for as long as the session is open.
        atexit.register(folder.cleanup)
        for path in settings.py_files or (pack_code(folder.name),):
            session.sparkContext.addPyFile(as_py_file(path, folder.name))
    if settings.has_source:
        register_data_source(session)
    return session


def archive_key_of(java: Java) -> str:
    """Return what an archive of this Java's and this Spark's classes is called by. Raises OSError."""
    return archive_key(java, str(SPARK_HOME / "jars"), OsFileSystem())


def _submitted_settings() -> dict[str, str]:
    """Return the settings of the JVM that spark-submit has started."""
    # SparkConf is empty until there is a connection to the JVM. No public call connects without opening a session.
    SparkContext._ensure_initialized()  # noqa: SLF001
    return dict(SparkConf().getAll())


def prepare_environment(environment: MutableMapping[str, str], *, is_local: bool, java_home: str) -> None:
    """Set what PySpark reads from the environment when it starts the JVM and its Python workers."""
    environment["JAVA_HOME"] = java_home
    # Another Spark's home would start that one's jars under this one's Python.
    environment["SPARK_HOME"] = str(SPARK_HOME)
    if is_local:
        # A shell's own PYSPARK_PYTHON is another version, or has none of our packages.
        environment["PYSPARK_PYTHON"] = sys.executable
        environment["PYSPARK_DRIVER_PYTHON"] = sys.executable
        # Without it Spark listens on the address that the host's name stands for.
        environment["SPARK_LOCAL_IP"] = LOOPBACK
    else:
        # Workers elsewhere may have it in another place, which only the person knows.
        environment.setdefault("PYSPARK_PYTHON", sys.executable)


def spark_settings(
    settings: SessionSettings, *, is_local: bool, cores: int, jvm_options: Sequence[str] = ()
) -> dict[str, str]:
    """Return the `spark.…` settings of a session.

    Args:
        settings: What was asked for.
        is_local: Whether Spark runs on this machine only.
        cores: Of this machine.
        jvm_options: Further ones for the driver's JVM.
    """
    known = {
        "spark.ui.enabled": str(settings.ui).lower(),
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.extraJavaOptions": " ".join(
            [
                f"-Dlog4j2.configurationFile={LOG_SETTINGS.as_uri()}",
                "-Duser.timezone=UTC",
                *(BRIEF_JVM if settings.is_brief and is_local else ()),
                *jvm_options,
            ]
        ),
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.execution.arrow.pyspark.enabled": "true",
        # The JVM holds whole partitions of a result until Python has read them.
        "spark.sql.execution.arrow.compression.codec": "zstd",
        "spark.sql.python.filterPushdown.enabled": "true",
        # Spark would make a folder in whatever directory the process happens to be in.
        "spark.sql.warehouse.dir": str(Path(tempfile.gettempdir()) / "gantry-spark-warehouse"),
    }
    if is_local:
        known["spark.driver.host"] = LOOPBACK
        known["spark.driver.bindAddress"] = LOOPBACK
    memory = {
        "spark.driver.memory": settings.driver_memory or (DRIVER_MEMORY if is_local else None),
        "spark.executor.memory": settings.executor_memory,
    }
    known |= {key: value for key, value in memory.items() if value is not None}
    partitions = settings.shuffle_partitions or (2 * cores if is_local else None)
    if partitions is not None:
        known["spark.sql.shuffle.partitions"] = str(partitions)
    return known | dict(settings.extra)


def _archive_options(settings: SessionSettings, java: Java, environment: Mapping[str, str]) -> Sequence[str]:
    if settings.written_archive is not None:
        return writing_options(settings.written_archive)
    folder = archive_folder(settings.class_archive, environment)
    if folder is not None:
        with suppress(OSError):
            return reading_options(find_archive(folder, archive_key_of(java), OsFileSystem()))
    return ()


def register_data_source(session: SparkSession) -> None:
    """Make `gantry` known to a session: `session.read.format("gantry")`."""
    # The data source brings the whole client engine; whoever only wants settings need not load it.
    from spark.datasource.source import GantryDataSource  # noqa: PLC0415

    session.dataSource.register(GantryDataSource)
