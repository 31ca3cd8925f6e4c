"""The page and the figures of reproduced experiments, and the figure of the demonstration."""

from .page import joined, line_part, page_data, panel_part, policies_part, rounded, table_part, write_page
from .panels import label_styles, panel_figures, policy_figure
