"""The free memory of a device, that of this process, and sizes for messages."""

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import torch

_UNKNOWN = 2**62
_CGROUPS = Path("/sys/fs/cgroup")


def free_memory(device: torch.device) -> int:
    """Bytes that can still be taken on ``device``. On a CPU, by the kernel and by the cgroups that we are in."""
    if device.type == "cuda":
        held = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return torch.cuda.mem_get_info(device)[0] + held
    available = _read_bytes(Path("/proc/meminfo"), "MemAvailable:")
    return min((_UNKNOWN if available is None else available, *_of_cgroups()))


def resident_memory(*, is_peak: bool = False) -> int:
    """Bytes of memory that this process holds, or has held at most; 0 where the system does not say."""
    return _read_bytes(Path("/proc/self/status"), "VmHWM:" if is_peak else "VmRSS:") or 0


def reset_peak_memory() -> None:
    """Measure the peak of ``resident_memory`` from now on, where the system can (Linux)."""
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


def _read_bytes(path: Path, field: str) -> int | None:
    """The bytes in the line of the kernel's file that begins with ``field``, which holds KiB."""
    return next((int(line.split()[1]) * 1024 for line in _lines(path) if line.startswith(field)), None)


def _of_cgroups() -> Iterator[int]:
    """The free memory under each limit; cached pages of files count as free."""
    for line in _lines(Path("/proc/self/cgroup")):
        number, controllers, path = line.split(":", 2)
        if number == "0":
            root, limit, used = _CGROUPS, "memory.max", "memory.current"
        elif "memory" in controllers.split(","):
            root, limit, used = _CGROUPS / "memory", "memory.limit_in_bytes", "memory.usage_in_bytes"
        else:
            continue
        group = root / path.strip("/")
        for folder in (group, *group.parents):
            max_bytes, used_bytes = _number(folder / limit), _number(folder / used)
            if max_bytes is not None and used_bytes is not None:
                stats = dict(each.split() for each in _lines(folder / "memory.stat") if len(each.split()) == 2)
                yield max_bytes - used_bytes + sum(int(stats.get(name, 0)) for name in ("inactive_file", "active_file"))
            if folder == root:
                break


def _number(path: Path) -> int | None:
    (text, *_) = [*_lines(path), ""]
    return int(text) if text.isdigit() else None


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text().splitlines()
    except OSError:
        return []


def format_bytes(size: float) -> str:
    """A number of bytes for a message."""
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.3g} {unit}"
        size /= 1024
    return f"{size:.3g} TiB"
