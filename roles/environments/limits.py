"""Resource limits of untrusted code, and the verdicts on its resource use."""

from dataclasses import dataclass

from roles.ports.engines import Unscorable

SIGKILLED = 128 + 9
"""Exit status of a killed process, as in a shell."""


@dataclass(frozen=True, slots=True)
class JailLimits:
    """Resource limits of a program, for all its processes together unless noted.

    Honest machines may disagree on a use between soft and hard limits; above a hard limit all of
    them end the program. Limits are in CPU time, since wall time depends on other load.
    """

    cpu_soft_seconds: float
    cpu_hard_seconds: int
    memory_soft_bytes: int
    memory_hard_bytes: int
    """Resident memory of the largest process."""
    wall_seconds: float
    """Wall-clock deadline; every answer should reach its CPU limit first."""
    output_bytes_max: int
    processes_max: int = 8
    """With 1, a program cannot create processes, so the limit of one process bounds its memory."""
    threads_max: int = 1
    """Threads of all processes together, if more than processes are allowed."""

    @property
    def address_space_bytes(self) -> int:
        """Address space of one process: an interpreter maps memory that it never touches."""
        return self.memory_hard_bytes * 5 // 4


@dataclass(frozen=True, slots=True)
class Use:
    """Resource use of a program."""

    cpu_seconds: float
    memory_bytes: int

    def and_then(self, other: "Use") -> "Use":
        """Return the combined use of two programs in sequence."""
        memory_bytes = max(self.memory_bytes, other.memory_bytes)
        return Use(self.cpu_seconds + other.cpu_seconds, memory_bytes)

    def over(self, limits: JailLimits) -> bool:
        """Return whether a hard limit was exceeded, as it is on every honest machine."""
        cpu = self.cpu_seconds >= limits.cpu_hard_seconds
        return cpu or self.memory_bytes >= limits.memory_hard_bytes

    def between(self, limits: JailLimits) -> Unscorable | None:
        """Return ``Unscorable`` with the reason if honest machines may disagree."""
        if self.cpu_seconds >= limits.cpu_soft_seconds:
            return Unscorable(f"{self.cpu_seconds:.1f} s of processor time")
        if self.memory_bytes >= limits.memory_soft_bytes:
            return Unscorable(f"{self.memory_bytes >> 20} MiB of memory")
        return None


@dataclass(frozen=True, slots=True)
class Ended:
    """Result of a program in a jail."""

    status: int
    """Exit status; 128 + n if signal n ended it."""
    output: bytes
    use: Use
    flooded: bool
    """True if it was killed because it exceeded the output limit."""
    expired: bool
    """True if it was killed at its deadline."""

    @property
    def killed(self) -> bool:
        """Return whether SIGKILL ended it, sent by itself or by the kernel out of memory."""
        return self.status == SIGKILLED
