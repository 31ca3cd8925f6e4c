r"""``PerContext``: the lower level solved exactly at every context, and the gradient by implicit differentiation.

What one would write by hand in JAX. It minimises the objective of the sample as stated: no basis, and no bias where
conditional means are exact.
"""

import equinox as eqx

from ..ground import whole
from ..lower import law_at
from .local_weights import run_at_contexts
from .pointwise import Exact, NoiseRows


class PerContext(Exact):
    """Exact lower-level solutions at each sampled context, L-BFGS-B on top.

    **Arguments:**

    - `draws`: draws of ``problem.conditional`` per context, to estimate conditional means that are not exact. They are
      exact if ``g`` has no noise, for ``Product`` data and for a ``Finite`` domain.

    Raises if conditional means are unknown: joint samples with noise in ``g``, and no sampler.

    **Example:**

    >>> case = cb.gallery.quadratic(0, dx=2, dy=1, train=300, test=300)
    >>> solution = cb.direct.PerContext(draws=32).solve(case.problem, case.train)  # this problem has a sampler
    >>> solution.converged, solution.policy(case.test.xi[:5]).shape
    (True, (5, 1))
    """

    draws: int = eqx.field(static=True, default=128)

    def __check_init__(self):
        whole("PerContext: draws", self.draws)

    def run(self, study, key, limits):
        return run_at_contexts(study, limits, lambda xi: NoiseRows.of_law(study, law_at(study, xi, self.draws, key)))
