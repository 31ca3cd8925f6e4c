"""What the samples say about ``x``: standard errors, directions that are not determined, what the basis misses."""

from .expansion import Around as Around
from .expansion import look_around as look_around
from .expansion import natural_step as natural_step
from .expansion import too_large as too_large
from .infer import infer as infer
from .infer import infer_flat as infer_flat
from .level_noise import pool_shares as pool_shares
from .missed import Missed as Missed
from .missed import Products as Products
from .missed import features_of as features_of
from .missed import what_is_missed as what_is_missed
from .neighbours import Neighbours as Neighbours
from .policy_noise import policy_noise as policy_noise
