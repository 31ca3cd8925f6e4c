"""Many processes: how they find each other, who holds which rows, and what happens when one of them ends."""

from .connections import free_port
from .launcher import launch
from .membership import Cluster, digest_of, everywhere, in_step, join, this_cluster
from .rows import RowLayout, even_counts, shards_of
