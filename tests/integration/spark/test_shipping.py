"""Our code as a file for a cluster's workers: complete, importable, the same bytes for the same code."""

import subprocess
import sys
import zipfile
from pathlib import Path

from spark.shipping import ARCHIVE, as_py_file, pack_code


def test_the_packages_are_importable_from_the_archive(tmp_path):
    archive = pack_code(str(tmp_path))
    assert archive == str(tmp_path / ARCHIVE)
    names = zipfile.ZipFile(archive).namelist()
    assert {"gantry/__init__.py", "gantry/model/record.py", "spark/__init__.py", "spark/shipping.py"} <= set(names)
    assert not [name for name in names if "__pycache__" in name or not name.startswith(("gantry/", "spark/"))]
    broker_queries = "import spark.shipping, gantry.model.record as r; print(spark.shipping.__file__, r.__file__)"
    command = [sys.executable, "-c", f"import sys; sys.path.insert(0, {archive!r}); {broker_queries}"]
    said = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True, timeout=60).stdout
    assert said.split() == [f"{archive}/spark/shipping.py", f"{archive}/gantry/model/record.py"]


def test_the_same_code_gives_the_same_bytes(tmp_path):
    for name in ("gantry", "spark"):
        (tmp_path / "code" / name / "__pycache__").mkdir(parents=True)
        (tmp_path / "code" / name / "__init__.py").write_text("")
        (tmp_path / "code" / name / "__pycache__" / "x.pyc").write_bytes(b"x")
    packed = []
    for folder in ("one", "two"):
        (tmp_path / folder).mkdir()
        packed.append(Path(pack_code(str(tmp_path / folder), root=str(tmp_path / "code"))).read_bytes())
    assert packed[0] == packed[1]
    assert zipfile.ZipFile(tmp_path / "one" / ARCHIVE).namelist() == ["gantry/__init__.py", "spark/__init__.py"]


def test_a_wheel_goes_as_a_zip(tmp_path):
    wheel = tmp_path / "gantry_mq-0.1.0-py3-none-any.whl"
    wheel.write_bytes(b"PK")
    copied = as_py_file(str(wheel), str(tmp_path))
    assert copied == str(tmp_path / "gantry_mq-0.1.0-py3-none-any.zip")
    assert Path(copied).read_bytes() == b"PK"
    assert as_py_file("/code/job.py", str(tmp_path)) == "/code/job.py"
