"""What the figures were measured on."""

import os
import platform
import statistics
import time
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from benchmarks.load import Facts

MEMORY_FILESYSTEMS = {"tmpfs", "ramfs", "devtmpfs"}
PROBES = 200


def filesystem(directory: Path) -> str:
    """The type of the filesystem that holds the directory, or "unknown" where /proc does not say."""
    mounts = Path("/proc/self/mounts")
    if not mounts.exists():
        return "unknown"
    resolved = directory.resolve()
    best, kind = "", "unknown"
    for line in mounts.read_text().splitlines():
        _, point, mounted_as, *_ = line.split(" ")
        point = point.encode().decode("unicode_escape")
        if resolved.is_relative_to(point) and len(point) >= len(best):
            best, kind = point, mounted_as
    return kind


def require_real_disk(directory: Path) -> str:
    """Refuses memory filesystems, where a sync costs nothing and every durable figure would be a lie."""
    kind = filesystem(directory)
    if kind in MEMORY_FILESYSTEMS:
        raise SystemExit(f"{directory} is on {kind}: choose a directory on a real disk with --work")
    return kind


def sync_microseconds(directory: Path, probes: int = PROBES) -> tuple[float, float]:
    """Median and 90th percentile of appending 4 KiB and syncing it."""
    path, durations = directory / "sync-probe", []
    with path.open("wb", buffering=0) as file:
        for _ in range(probes):
            started = time.perf_counter()
            file.write(b"\0" * 4096)
            os.fdatasync(file.fileno()) if hasattr(os, "fdatasync") else os.fsync(file.fileno())
            durations.append((time.perf_counter() - started) * 1e6)
    path.unlink()
    return statistics.median(durations), statistics.quantiles(durations, n=10)[-1]


def facts(directory: Path) -> Facts:
    """Cores, memory, versions, the filesystem and what a sync costs on it right now."""
    median, tail = sync_microseconds(directory)
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return {
        "when": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
        "processor": f"{os.cpu_count()} cores, {_processor()}",
        "memory": f"{memory:.0f} GiB",
        "system": platform.platform(),
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "apsw": _version("apsw"),
        "sqlite": _sqlite_version(),
        "uvloop": _version("uvloop"),
        "filesystem": require_real_disk(directory),
        "sync of 4 KiB": f"{median:.0f} µs median, {tail:.0f} µs 90th percentile",
        "load average": " ".join(f"{value:.2f}" for value in os.getloadavg()),
    }


def _version(distribution: str) -> str:
    try:
        return version(distribution)
    except PackageNotFoundError:
        return "not installed"


def _sqlite_version() -> str:
    import apsw

    return apsw.sqlite_lib_version()


def _processor() -> str:
    information = Path("/proc/cpuinfo")
    if information.exists():
        for line in information.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.machine()
