"""What stands between a basis, the data and a good policy, measured by ``diagnose`` before anything is solved."""

from .diagnose import diagnose
from .diagnosis import Advice, Condition, Diagnosis
