"""The geometry of the map of GPUs: which cell is where. Pure.

Nodes go down a column, then to the next one. A node is a row of 8 cells, or several if it has more. If not all nodes
fit, the map shows the columns around the cursor.
"""

from __future__ import annotations

from msgspec import Struct
from msgspec.structs import replace

NODE = 8
"""Maximum number of a node's cells in one row."""

LONGEST_NAME = 8

LEGEND = 1
"""Rows of the legend."""

WORST = 10
"""Number of GPUs in the list next to the map."""

SHORT_LIST = 16
"""Columns of the list of the worst GPUs with the gap before it if it is short."""

LIST_GAP = 2
"""Columns before the long list."""

FEW = 8
"""Maximum number of nodes whose cells are wide enough for numbers."""

NUMBERS = 6
"""Columns of a cell with its number."""


class Form(Struct, frozen=True):
    """One way to draw a map."""

    cell: int
    """Columns of a cell."""
    named: bool = True
    """Whether each node has its name before its cells."""
    gap: int = 1
    """Columns between nodes."""
    is_list_long: bool = True
    """Whether the list of the worst GPUs has all its columns."""


FORMS = (
    Form(NUMBERS),
    Form(NUMBERS, is_list_long=False),
    Form(2),
    Form(1),
    Form(1, is_list_long=False),
    Form(1, named=False, is_list_long=False),
    Form(1, named=False, gap=0, is_list_long=False),
)
"""Forms, the most readable first."""


class Shape(Struct, frozen=True):
    """What the geometry depends on."""

    nodes: int
    most: int
    """Most cells of a node."""
    name: int
    """Columns of the longest name of a node."""
    list: int
    """Columns of the long form of the list of the worst GPUs."""

    @property
    def cells(self) -> int:
        """Cells of a node in one row."""
        return max(1, min(NODE, self.most))

    @property
    def lines(self) -> int:
        """Rows of a node."""
        return max(1, _divided(self.most, NODE))


class Grid(Struct, frozen=True):
    """A map in a pane of some size."""

    shape: Shape
    form: Form
    across: int
    """Columns of nodes that fit next to each other."""
    down: int
    """Nodes below each other."""
    first: int = 0
    """The leftmost column of nodes that is shown."""

    @property
    def label(self) -> int:
        """Columns of a node's name with its mark and a blank."""
        return self.shape.name + 2 if self.form.named else 0

    @property
    def block(self) -> int:
        """Columns of a node with the gap after it."""
        return self.label + self.shape.cells * self.form.cell + self.form.gap

    @property
    def columns(self) -> int:
        """Columns of nodes, also those that are not shown."""
        return _divided(self.shape.nodes, self.down)

    @property
    def width(self) -> int:
        return min(self.across, self.columns) * self.block

    @property
    def visible(self) -> range:
        """The nodes that are shown."""
        begin = self.first * self.down
        return range(begin, min(self.shape.nodes, begin + self.across * self.down))

    def node_at(self, column: int, row: int) -> int | None:
        """Return the node of a visible column and a row of nodes; None if there is none."""
        node = (self.first + column) * self.down + row
        return node if row < self.down and node < self.shape.nodes else None

    def showing(self, node: int) -> Grid:
        """Return the page of the map with this node."""
        column = node // self.down
        return replace(self, first=column - column % self.across)

    def cell_under(self, x: int, y: int) -> tuple[int, int] | None:
        """Return the node and its cell at a column and a row of the screen; None if there is none."""
        column, inside = divmod(x, self.block)
        row, line = divmod(y, self.shape.lines)
        node = self.node_at(column, row)
        at = (inside - self.label) // self.form.cell
        if node is None or column >= self.across or not 0 <= at < self.shape.cells:
            return None
        return node, line * NODE + at

    def moved(self, node: int, cell: int, right: int, down: int) -> tuple[int, int]:
        """Return the cell that is so many cells to the right of and below another one, inside the map."""
        cells, lines = self.shape.cells, self.shape.lines
        column, row = divmod(node, self.down)
        line, at = divmod(cell, NODE)
        column, at = divmod(max(0, column * cells + at + right), cells)
        if column >= self.columns:
            column, at = self.columns - 1, cells - 1
        row, line = divmod(max(0, min(row * lines + line + down, self.down * lines - 1)), lines)
        return min(column * self.down + row, self.shape.nodes - 1), line * NODE + at


def grid_of(shape: Shape, width: int, height: int) -> Grid:
    """Return the most readable form in which all nodes fit, else the smallest one."""
    rows = max(1, (height - LEGEND) // shape.lines)
    for form in FORMS:
        if form.cell == NUMBERS and shape.nodes > FEW:
            continue
        grid = _laid_out(shape, form, width, rows)
        if grid.across * grid.down >= shape.nodes:
            return grid
    return replace(grid, across=max(1, grid.across))


def _laid_out(shape: Shape, form: Form, width: int, rows: int) -> Grid:
    """Return the columns of nodes that fit next to the list, which are about equally long."""
    beside = shape.list + LIST_GAP if form.is_list_long else SHORT_LIST
    block = Grid(shape, form, 1, 1).block
    across = max(0, (width - beside) // block)
    columns = max(1, min(across, _divided(shape.nodes, rows)))
    return Grid(shape, form, across, min(rows, _divided(shape.nodes, columns)))


def rows_wanted(shape: Shape, width: int) -> int:
    """Return the rows in which all nodes fit with their names, and at least two entries of the list per node."""
    across = max(1, _laid_out(shape, Form(1), width, 1).across)
    return LEGEND + max(min(WORST, 2 * shape.nodes), _divided(shape.nodes, across) * shape.lines)


def _divided(count: int, by: int) -> int:
    """Return the quotient, rounded up."""
    return -(-count // by)
