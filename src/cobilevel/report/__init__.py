"""The page and the figures of reproduced experiments, and the figure of the demonstration."""

from .page import joined as joined
from .page import write_page as write_page
from .panels import label_styles as label_styles
from .panels import panel_figures as panel_figures
from .panels import policy_figure as policy_figure
