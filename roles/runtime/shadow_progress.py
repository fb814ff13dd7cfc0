"""Progress of a shadow: how its own steps compare with those of the leader."""

from dataclasses import dataclass

from protocol.core.types import PeerId


@dataclass(slots=True)
class ShadowProgress:
    """Steps of the leader that this trainer has repeated since its start."""

    version: int | None = None
    """Version whose state is in this trainer's engine, exactly; None without one."""
    confirmed: int = 0
    """Versions that are equal to the step of this trainer."""
    differing: int = 0
    """Versions that are not."""
    newest_differing: int | None = None
    """The newest of those; None without one."""
    warning: str = ""
    """Line about the newest difference, until a later version is confirmed; empty without one."""
    obstacle: str = ""
    """Reason why the next version is not repeated; empty without one."""
    is_active: bool = False
    """True while this trainer shadows another one."""
    trains: bool = False
    """True if it trains a part of each round, besides."""

    def confirm(self) -> None:
        """Count a version that is equal to the step of this trainer."""
        self.confirmed, self.warning = self.confirmed + 1, ""

    def differ(self, version: int, trainer: PeerId) -> None:
        """Count a version of another trainer that is not."""
        self.differing, self.newest_differing = self.differing + 1, version
        self.warning = (
            f"version {version} of trainer …{trainer[-6:]} differs from the step this node "
            "computed: one of the two is wrong, or they have different devices or software"
        )

    def note_ranks(self, version: int, ranks: int, own: int) -> None:
        """Note the number of ranks that computed the next version, and that of this trainer."""
        differs = f"{ranks} ranks computed version {version}, this node has {own}"
        self.obstacle = "" if ranks == own else differs

    def leave(self) -> None:
        """Note that this trainer shadows nobody any more."""
        self.is_active, self.version, self.warning, self.obstacle = False, None, "", ""

    @property
    def text(self) -> str:
        """One line about the present; empty while this node shadows nobody."""
        if not self.is_active:
            return ""
        if self.obstacle:
            return f"cannot compare: {self.obstacle}"
        work = "training with the leader" if self.trains else "shadowing"
        if self.version is not None:
            return f"{work}, in step with version {self.version}"
        return f"{work}, waiting for a published state"
