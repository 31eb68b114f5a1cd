"""Show values: forms (lines, tables, grids) for a terminal, CSV and pages; pictures drawn by matplotlib; pages of HTML."""

from __future__ import annotations

from typing import TYPE_CHECKING

from attnctl.public import public_names

if TYPE_CHECKING:
    from attnctl.render.figure.bars import Bars as Bars
    from attnctl.render.figure.bars import bar_drawing as bar_drawing
    from attnctl.render.figure.drawing import INK as INK
    from attnctl.render.figure.drawing import QUIET as QUIET
    from attnctl.render.figure.heatmap import colour_function as colour_function
    from attnctl.render.figure.heatmap import draw_heatmap as draw_heatmap
    from attnctl.render.figure.heatmap import draw_strip as draw_strip
    from attnctl.render.figure.heatmap import drawing_of as drawing_of
    from attnctl.render.figure.heatmap import panels_of_grid as panels_of_grid
    from attnctl.render.figure.labels import LONGEST_LABEL as LONGEST_LABEL
    from attnctl.render.figure.labels import Labels as Labels
    from attnctl.render.figure.layout import LEAST_EXTENT as LEAST_EXTENT
    from attnctl.render.figure.layout import Drawing as Drawing
    from attnctl.render.figure.layout import Panel as Panel
    from attnctl.render.figure.layout import Panels as Panels
    from attnctl.render.figure.layout import Scale as Scale
    from attnctl.render.figure.layout import colour_map as colour_map
    from attnctl.render.figure.layout import colour_norm as colour_norm
    from attnctl.render.figure.layout import panel_of_heads as panel_of_heads
    from attnctl.render.figure.layout import token_labels as token_labels
    from attnctl.render.figure.photograph import RegionValues as RegionValues
    from attnctl.render.figure.photograph import draw_looks_and_effects as draw_looks_and_effects
    from attnctl.render.figure.photograph import draw_over_photograph as draw_over_photograph
    from attnctl.render.figure.raster import moving_picture as moving_picture
    from attnctl.render.figure.saving import plain_settings as plain_settings
    from attnctl.render.figure.shaded_text import ShadedPart as ShadedPart
    from attnctl.render.figure.shaded_text import draw_shaded_text as draw_shaded_text
    from attnctl.render.form_builders.explanation import Explanation as Explanation
    from attnctl.render.form_builders.first_screen import FirstScreen as FirstScreen
    from attnctl.render.form_builders.relations import relations_forms as relations_forms
    from attnctl.render.form_builders.relations import relations_table as relations_table
    from attnctl.render.form_builders.rows import row_forms as row_forms
    from attnctl.render.forms import ABSENT as ABSENT
    from attnctl.render.forms import CHANGE as CHANGE
    from attnctl.render.forms import Column as Column
    from attnctl.render.forms import Form as Form
    from attnctl.render.forms import Grid as Grid
    from attnctl.render.forms import Line as Line
    from attnctl.render.forms import Piece as Piece
    from attnctl.render.forms import Table as Table
    from attnctl.render.forms import bar_columns as bar_columns
    from attnctl.render.forms import exponential_heading as exponential_heading
    from attnctl.render.forms import shaded_tokens as shaded_tokens
    from attnctl.render.forms import token_label as token_label
    from attnctl.render.page import Page as Page
    from attnctl.render.page import document_page as document_page
    from attnctl.render.page import escaped_html as escaped_html
    from attnctl.render.page import filled_template as filled_template
    from attnctl.render.page import json_for_script as json_for_script
    from attnctl.render.page import page_colours as page_colours
    from attnctl.render.page.reading_pages import table_html as table_html
    from attnctl.render.page.sources import check_page_map as check_page_map
    from attnctl.render.page.sources import page_of_sources as page_of_sources
    from attnctl.render.terminal.heatmap import HeatmapBlocks as HeatmapBlocks
    from attnctl.render.terminal.heatmap import tab_separated as tab_separated
    from attnctl.render.terminal.photograph import PhotographBlocks as PhotographBlocks
    from attnctl.render.terminal.photograph import patches_tab_separated as patches_tab_separated
else:
    __getattr__, __dir__, __all__ = public_names(
        __name__,
        {
            "attnctl.render.figure.bars": "Bars bar_drawing",
            "attnctl.render.figure.drawing": "INK QUIET",
            "attnctl.render.figure.heatmap": "colour_function draw_heatmap draw_strip drawing_of panels_of_grid",
            "attnctl.render.figure.labels": "LONGEST_LABEL Labels",
            "attnctl.render.figure.layout": (
                "Drawing LEAST_EXTENT Panel Panels Scale colour_map colour_norm panel_of_heads token_labels"
            ),
            "attnctl.render.figure.photograph": "RegionValues draw_looks_and_effects draw_over_photograph",
            "attnctl.render.figure.raster": "moving_picture",
            "attnctl.render.figure.saving": "plain_settings",
            "attnctl.render.figure.shaded_text": "ShadedPart draw_shaded_text",
            "attnctl.render.form_builders.explanation": "Explanation",
            "attnctl.render.form_builders.first_screen": "FirstScreen",
            "attnctl.render.form_builders.relations": "relations_forms relations_table",
            "attnctl.render.form_builders.rows": "row_forms",
            "attnctl.render.forms": (
                "ABSENT CHANGE Column Form Grid Line Piece Table bar_columns exponential_heading shaded_tokens "
                "token_label"
            ),
            "attnctl.render.page": "Page document_page escaped_html filled_template json_for_script page_colours",
            "attnctl.render.page.reading_pages": "table_html",
            "attnctl.render.page.sources": "check_page_map page_of_sources",
            "attnctl.render.terminal.heatmap": "HeatmapBlocks tab_separated",
            "attnctl.render.terminal.photograph": "PhotographBlocks patches_tab_separated",
        },
    )
