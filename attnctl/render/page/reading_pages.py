"""Write a reading as an HTML page: lines, tables and grids."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import takewhile

from attnctl.render.forms import Column, Form, Grid, Line, Table, piece_parts
from attnctl.render.page import document_page, escaped_html, json_for_script, page_colours


def reading_page(forms: Iterable[Form], title: str, cited: str = "") -> str:
    """Return one HTML file that needs no other, with the forms of a reading one below the other."""
    body = "".join(map(form_html, forms))
    scripts = ["dom.js", "colour.js", "shades.js"] if "data-map=" in body else []
    data = f'<script type="application/json" id="data">{json_for_script(page_colours())}</script>' if scripts else ""
    masthead = f"<header class=masthead><p><b>attnctl</b></p><p class=small>{escaped_html(title)}</p></header>"
    body = f"<body>{masthead}<main><section>{body}</section></main>{data}"
    return document_page(body, ["page.css"], scripts, f"{title} · attnctl", cited)


def form_html(form: Form) -> str:
    """Return a form as HTML: a line becomes a paragraph; a table or a grid of numbers becomes a table."""
    if isinstance(form, Table):
        return table_html(form)
    if isinstance(form, Grid):
        return _grid_html(form)
    line = form if isinstance(form, Line) else Line(form)
    text = (
        (line.between or "").replace("   ", " \u2003").join(_piece_html(piece, tone) for piece, tone, _ in line.pieces)
    )
    aside = [_piece_html(*piece_parts(piece)[:2]) for piece in (line.mark, line.right)]
    whole = " ".join(part for part in (aside[0], text, aside[1]) if part)
    return f"<p>{_toned_html(whole, line.tone)}</p>" if whole else ""


def _piece_html(text: str, tone: str) -> str:
    """Return a piece of text in its tone or its shade."""
    kind, _, share = tone.partition(" ")
    if kind in ("heat", "change"):
        return f"<span{_shade_data(kind, float(share))}>{escaped_html(text)}</span>"
    return _toned_html(escaped_html(text), tone)


def _shade_data(kind: str, share: float | None) -> str:
    """Return attributes for the page's script: the colour map and the place in it from 0 to 1; "" without a shade."""
    if share is None:
        return ""
    name, place = ("heat", 0.94 * share + 0.06) if kind == "heat" else ("difference", 0.5 + 0.5 * share)
    return f" data-map={name} data-place={place:.3f}"


def _toned_html(html: str, tone: str) -> str:
    """Return HTML in its tone: bold, italic, or quiet for dim."""
    for name, element in (("bold", "b"), ("italic", "i")):
        html = f"<{element}>{html}</{element}>" if html and name in tone else html
    return f"<span class=quiet>{html}</span>" if html and "dim" in tone else html


def _grid_html(grid: Grid) -> str:
    """Return a matrix with its labels, and with the sums of its rows if the grid has them."""
    columns = [*grid.columns, *["Σ"] * grid.sums]
    head = "".join(f"<th>{escaped_html(name)}" for name in columns)
    rows = []
    for row, name in enumerate(grid.rows):
        cells = [grid.cell_text(row, column) for column in range(len(grid.columns))]
        cells += [grid.number(float(grid.array[row].sum()))] * grid.sums
        start = (
            f"<tr{' class=strongest' * (row in grid.marks or row in grid.strong)}><th scope=row>{escaped_html(name)}"
        )
        kind = "heat" if grid.heat else "change" if grid.change else ""
        shades = [_shade_data(kind, float(value)) if kind else "" for value in grid.array[row]] + [""] * grid.sums
        rows.append(start + "".join(f"<td{shade}>{cell}" for shade, cell in zip(shades, cells, strict=True)))
    return f"<div class=scroll><table><thead><tr><th>{head}</thead><tbody>{''.join(rows)}</tbody></table></div>"


def _names_first(columns: list[Column]) -> list[Column]:
    """Return columns with those whose text may go on below right after the columns that are never left out.

    A terminal shows such a text below its row; at the end of a wide table on a page nobody would see it.
    """
    below = [column for column in columns if column.cut == "below"]
    others = [column for column in columns if column.cut != "below"]
    leading = list(takewhile(lambda column: column.rank is None, others))
    return [*leading, *below, *others[len(leading) :]]


def table_html(table: Table, row_kind: str = "") -> str:
    """Return a table; with `row_kind`, each row has a number in data-ROW_KIND, and the page's script draws the bars."""
    columns = [
        column for column in table.columns if not column.hidden and any(value is not None for value in column.values)
    ]
    columns = _names_first(columns)
    kinds = {"bar": "<th class=bar>", "text": "<th class=said>"}
    head = "".join(kinds.get(column.kind, "<th>") + escaped_html(column.heading) for column in columns)
    rows = []
    for index, values in enumerate(zip(*(column.values for column in columns), strict=True)):
        strong = " class=strongest" * bool(table.strong and table.strong[index])
        cells = f"<tr data-{row_kind}={index}>" if row_kind else f"<tr{strong}>"
        for column, value in zip(columns, values, strict=True):
            if column.kind == "bar" and not row_kind:
                cells += f"<td><meter value={value or 0:.3f}></meter>"
            elif column.kind == "bar":
                cells += f"<td class=bar data-{'matters' if column.tone else 'looks'}={value or 0:.3f}>"
            else:
                text = escaped_html(column.cell_text(value))
                if column.kind != "text":
                    cells += f"<td{_shade_data(column.kind, column.shade_at(index))}>{text}"
                elif isinstance(value, Line):
                    cells += f"<td class=said>{text}"
                else:
                    below = " below" * (column.cut == "below")
                    cells += f"<th class='said{below}' scope=row title='{text}'>{text}"
        rows.append(cells)
    about = escaped_html(table.legend.replace("{}", "; ".join(column.about for column in columns if column.about)))
    foot = "".join(f"<td>{escaped_html(text)}" for text in table.foot)
    whole = f"<thead><tr>{head}</thead><tbody>{''.join(rows)}</tbody>{f'<tfoot><tr>{foot}</tfoot>' * bool(foot)}"
    below = "".join(f"<p class=lead>{text}</p>" for text in (escaped_html(table.omission), about) if text)
    return f"<div class=scroll><table{' class=rows' * bool(row_kind)}>{whole}</table></div>{below}"
