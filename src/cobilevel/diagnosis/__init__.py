"""What stands between a basis, the data and a good policy, measured by ``diagnose`` before anything is solved."""

from .diagnose import diagnose as diagnose
from .diagnosis import Advice as Advice
from .diagnosis import Condition as Condition
from .diagnosis import Diagnosis as Diagnosis
