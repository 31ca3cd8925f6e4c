"""The idea: a policy in a basis turns the contextual problem into an ordinary bilevel problem in ``(x, W)``."""

from .batches import Batch, Batches, EveryPair, RowIndex, Source, Table, batch_of, batch_rows
from .far_rows import FarRows, FarTable, read_partition
from .reduced import DENSE_LIMIT, Bilevel, Reduced, Turn, is_formed, nodes_for, reduce_study, reduce_with
