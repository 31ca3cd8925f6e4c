"""The page and the figures of reproduced experiments, and the figure of the demonstration."""

from .page import joined, write_page
from .panels import label_styles, panel_figures, policy_figure
