"""Records of measurements, and JSON files."""

from __future__ import annotations

import json
import math
import os
import platform
from dataclasses import asdict, dataclass, fields
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from tpgen._version import __version__
from tpgen.base.errors import TpgenError
from tpgen.base.locks import cached_property

SCHEMA = 1


@dataclass(frozen=True)
class Environment:
    """Machine and package versions of a benchmark."""

    tpgen: str
    torch: str
    e3nn: str
    cuequivariance: str  # empty where it is not installed
    python: str
    system: str
    cpu: str
    cpu_capability: str  # widest vector instructions that torch uses
    cores: int
    threads: int
    gpu: str  # empty where there is none
    compile_caches: bool  # whether Inductor may take code of an earlier run: first calls are shorter then


def read_environment() -> Environment:
    """Machine and package versions of this process."""
    return Environment(
        tpgen=__version__,
        torch=torch.__version__,
        e3nn=_package_version_or_empty("e3nn"),
        cuequivariance=_package_version_or_empty("cuequivariance-torch"),
        python=platform.python_version(),
        system=f"{platform.system()} {platform.machine()}",
        cpu=_read_cpu_model_name(),
        cpu_capability=torch.backends.cpu.get_cpu_capability(),
        cores=os.cpu_count() or 1,
        threads=torch.get_num_threads(),
        gpu=torch.cuda.get_device_name() if torch.cuda.is_available() else "",
        compile_caches=os.environ.get("TORCHINDUCTOR_FORCE_DISABLE_CACHES", "0") != "1",
    )


def _package_version_or_empty(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""


def _read_cpu_model_name() -> str:
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


@dataclass(frozen=True)
class Record:
    """Status, times and memory of one contender at a task of a problem."""

    problem: str
    task: str
    contender: str
    status: str  # ok; wrong: failed the gate; failed: raised; unavailable: cannot take part
    rows: int
    layout: str
    reason: str = ""
    error: float | None = None  # relative to the largest entry of the float64 result
    median: float | None = None
    min: float | None = None
    spread: float | None = None  # third quartile minus first, over the median
    samples: int = 0
    calls: int = 0  # of each sample
    doubt: str = ""  # why no ratio is made of its time
    build: float | None = None  # construct the product
    first: float | None = None  # first call: compile, if it is compiled at the first call
    peak_bytes: int | None = None  # of torch's allocations during a call, above what was held before

    @property
    def family(self) -> str:
        return self.contender.split("/")[0]

    @property
    def backend(self) -> str:
        return self.contender.split("/")[-1]


@dataclass(frozen=True)
class Settings:
    """Dtype, device and seconds per task of a benchmark."""

    dtype: str
    device: str
    seconds: float


@dataclass(frozen=True)
class Report:
    """Benchmark records, with settings and environment."""

    environment: Environment
    settings: Settings
    records: tuple[Record, ...]

    @cached_property
    def _by_key(self) -> dict[tuple[str, str, str], Record]:
        return {(r.problem, r.task, r.contender): r for r in self.records}

    @cached_property
    def problems(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(r.problem for r in self.records))

    @cached_property
    def tasks(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(r.task for r in self.records))

    @cached_property
    def contenders(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(r.contender for r in self.records))

    def find(self, problem: str, task: str, contender: str) -> Record | None:
        """A record, or None."""
        return self._by_key.get((problem, task, contender))

    def records_of(self, problem: str, task: str) -> tuple[Record, ...]:
        return tuple(r for r in self.records if (r.problem, r.task) == (problem, task))

    def speedup(self, record: Record, same_backend: bool = False) -> float | None:
        """Speed-up of a record over e3nn's best (or same) backend; None if missing or in doubt."""
        rivals = [
            r
            for r in self.records_of(record.problem, record.task)
            if r.family == "e3nn" and r.median and (r.backend == record.backend or not same_backend)
        ]
        best = min(rivals, key=lambda r: r.median or 0.0, default=None)
        if best is None or best.doubt or record.doubt or not (best.median and record.median):
            return None
        return best.median / record.median

    def geometric_mean_speedup(self, contender: str, task: str, same_backend: bool = False) -> MeanSpeedup | None:
        """Average a contender's speed-ups over problems; None without any."""
        found = [
            (ratio, r.problem)
            for r in self.records
            if (r.contender, r.task) == (contender, task) and (ratio := self.speedup(r, same_backend))
        ]
        if not found:
            return None
        mean = math.exp(sum(math.log(ratio) for ratio, _ in found) / len(found))
        return MeanSpeedup(mean, len(found), *min(found))

    def save_json(self, path: str | Path) -> None:
        """Write the report as JSON, for `load_report`."""
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        Path(path).write_text(self.to_json() + "\n")

    def to_json(self) -> str:
        return json.dumps({"schema": SCHEMA, **asdict(self)}, indent=1)


@dataclass(frozen=True)
class MeanSpeedup:
    """Mean speed-up, number of problems, and smallest speed-up."""

    mean: float
    problems: int
    least: float
    least_problem: str


def load_report(path: str | Path) -> Report:
    """Read a report from a file of `Report.save_json`."""
    try:
        data = json.loads(Path(path).read_text())
        if data["schema"] != SCHEMA:
            raise TpgenError(f"{path}: the records have schema {data['schema']!r}, this version reads {SCHEMA}")
        return Report(
            build_dataclass_from_json(Environment, data["environment"]),
            build_dataclass_from_json(Settings, data["settings"]),
            tuple(build_dataclass_from_json(Record, record) for record in data["records"]),
        )
    except (KeyError, TypeError, json.JSONDecodeError) as error:
        raise TpgenError(f"{path} is not a benchmark report ({error}); `tpgen bench --records` writes one") from None


def build_dataclass_from_json(dataclass_type: type, data: dict[str, Any]) -> Any:
    """Build a dataclass from JSON data; refuse unknown entries."""
    unknown = sorted(set(data) - {f.name for f in fields(dataclass_type)})
    if unknown:
        raise TypeError(f"unknown entries {', '.join(unknown)}")
    return dataclass_type(**data)
