"""Where the rows of data are: in this process, all of them; or spread over those of a cluster."""

from typing import Any

import equinox as eqx
import jax

from ..cluster import RowLayout


class HeldRows(eqx.Module):
    """What data say of where their rows are; here, that this process has them all."""

    @property
    def layout(self) -> RowLayout | None:
        """How rows are spread over the processes of a cluster, where they are."""
        return None

    @property
    def all_here(self) -> bool:
        """Whether this process has all the data, be they spread or not; else only its share of the rows."""
        return True

    def whole(self) -> Any:
        """The data of all processes."""
        return self

    def known_by(self) -> Any:
        """What the data are recognised by, the same in all processes: their arrays, or digests of these."""
        return jax.tree.leaves(self)

    def placed(self) -> Any:
        """The samples, each row where it is held."""
        return self

    def distinct(self) -> int:
        """How many different contexts there are."""
        held: Any = self
        return held.contexts().distinct()
