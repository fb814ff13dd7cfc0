"""What untrusted code may use, and what follows from what it used."""

from dataclasses import dataclass

from roles.ports.engines import Unscorable

SIGKILLED = 128 + 9
"""Exit status of what was killed, as a shell gives it."""


@dataclass(frozen=True, slots=True)
class JailLimits:
    """What a program may use, all its processes together if nothing else is said.

    Between soft and hard honest machines may differ; beyond hard all of them end it. Times are
    of the processor: those of the wall depend on what else a machine does.
    """

    cpu_soft_seconds: float
    cpu_hard_seconds: int
    memory_soft_bytes: int
    memory_hard_bytes: int
    """Resident memory of the largest process."""
    wall_seconds: float
    """A deadline that no answer should meet before its processor time."""
    output_bytes_max: int
    processes_max: int = 8
    """With 1, a program cannot create processes: one process bounds its memory."""
    threads_max: int = 1
    """Threads of all processes together, if there may be more of them than processes."""

    @property
    def address_space_bytes(self) -> int:
        """What one process may map: an interpreter maps some that it never touches."""
        return self.memory_hard_bytes * 5 // 4


@dataclass(frozen=True, slots=True)
class Use:
    """What was used."""

    cpu_seconds: float
    memory_bytes: int

    def and_then(self, other: "Use") -> "Use":
        """Return the use of two programs, one after the other."""
        memory_bytes = max(self.memory_bytes, other.memory_bytes)
        return Use(self.cpu_seconds + other.cpu_seconds, memory_bytes)

    def over(self, limits: JailLimits) -> bool:
        """Return whether a hard limit was passed: so it is on every honest machine."""
        cpu = self.cpu_seconds >= limits.cpu_hard_seconds
        return cpu or self.memory_bytes >= limits.memory_hard_bytes

    def between(self, limits: JailLimits) -> Unscorable | None:
        """Return why honest machines may differ, if they may."""
        if self.cpu_seconds >= limits.cpu_soft_seconds:
            return Unscorable(f"{self.cpu_seconds:.1f} s of processor time")
        if self.memory_bytes >= limits.memory_soft_bytes:
            return Unscorable(f"{self.memory_bytes >> 20} MiB of memory")
        return None


@dataclass(frozen=True, slots=True)
class Ended:
    """How a program in a jail ended."""

    status: int
    """Exit status; 128 and more: ended by the signal of that number less 128."""
    output: bytes
    use: Use
    flooded: bool
    """It wrote more than it may, and was ended."""
    expired: bool
    """Its deadline passed, and it was ended."""

    @property
    def killed(self) -> bool:
        """Return whether it was killed, by itself or by a machine without memory."""
        return self.status == SIGKILLED
