"""Figures and pages: what people would rather look at than read."""

from .figures import policy_figure as policy_figure
from .page import write_page as write_page
from .panels import label_styles as label_styles
from .panels import panel_figures as panel_figures
