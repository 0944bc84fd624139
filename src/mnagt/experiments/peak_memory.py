"""The largest memory that this process has taken."""

from contextlib import suppress
from pathlib import Path


def reset_peak_memory() -> None:
    """Measure from now on, where the system can (Linux); else the peak is that of the whole process."""
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


def peak_memory_mb() -> float:
    """Resident memory at its highest, in MB; 0 where the system does not tell (other than Linux)."""
    with suppress(OSError, StopIteration, ValueError):
        lines = Path("/proc/self/status").read_text().splitlines()
        return round(int(next(line for line in lines if line.startswith("VmHWM")).split()[1]) / 1024, 1)
    return 0.0
