"""The idea: a policy in a basis turns the contextual problem into an ordinary bilevel problem in ``(x, W)``."""

from .batches import Batch as Batch
from .batches import Batches as Batches
from .batches import RowIndex as RowIndex
from .batches import Source as Source
from .batches import Table as Table
from .batches import batch_of as batch_of
from .batches import batch_rows as batch_rows
from .reduced import Bilevel as Bilevel
from .reduced import Reduced as Reduced
from .reduced import reduce_study as reduce_study
from .reduced import reduce_with as reduce_with
