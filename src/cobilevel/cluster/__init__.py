"""Many processes: how they find each other, who holds which rows, and what happens when one of them ends."""

from .connections import free_port as free_port
from .launcher import launch as launch
from .membership import Cluster as Cluster
from .membership import digest_of as digest_of
from .membership import everywhere as everywhere
from .membership import in_step as in_step
from .membership import join as join
from .membership import this_cluster as this_cluster
from .rows import RowLayout as RowLayout
from .rows import even_counts as even_counts
from .rows import shards_of as shards_of
