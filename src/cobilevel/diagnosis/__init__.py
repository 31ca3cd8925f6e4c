"""Whether a basis and the data can give a good policy, measured by ``diagnose`` before anything is solved."""

from .diagnose import diagnose
from .diagnosis import Advice, Condition, Diagnosis
