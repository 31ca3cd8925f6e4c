"""Road networks in files: the TNTP format of nodes, links, trips and flows; and projects of AequilibraE.

TNTP files hold lines ``<KEY> value`` up to ``<END OF METADATA>``, then rows that end in ``;``. A comment follows ``~``.
Numbers are written so that they are read back exactly.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float, Int

COLUMNS = ("init_node", "term_node", "capacity", "length", "free_flow_time", "b", "power", "speed", "toll", "link_type")


@dataclass(frozen=True)
class Roads:
    """A road network with its demand. Nodes are numbered from 1, and the first ones are zones.

    `links`: the columns of the TNTP format; `trips` from zone to zone; trips do not pass through nodes below
    `first_through`; `places`: the positions of nodes, if known.

    **Arguments:**

    - `links`, `trips`, `first_through`, `places`: as above; `nodes`: how many.

    **Example:**

    >>> roads = cb.gallery.grid(2, 2)
    >>> roads.nodes, len(roads.links["capacity"]), roads.trips.shape
    (4, 8, (4, 4))
    """

    links: dict[str, Float[np.ndarray, " links"]]
    trips: Float[np.ndarray, "zones zones"]
    nodes: int
    first_through: int = 1
    places: Float[np.ndarray, "nodes 2"] | None = None

    @property
    def ends(self) -> tuple[Int[np.ndarray, " links"], Int[np.ndarray, " links"]]:
        """Where each link begins and ends, counted from 0."""
        return tuple(self.links[name].astype(int) - 1 for name in COLUMNS[:2])


class _File:
    """The rows of a file, each with its line, for messages that name both."""

    def __init__(self, path: str | Path):
        self.path, self.line, self.meta = Path(path), 0, {}
        self.lines = self.path.read_text().splitlines()

    def error(self, words: str) -> ValueError:
        return ValueError(f"{self.path}, line {self.line}: {words}.")

    def rows(self) -> Iterator[list[str]]:
        """The words of each row after the metadata, which are kept in `meta`."""
        for line, text in enumerate(self.lines, 1):
            self.line, text = line, text.split("~")[0].replace(";", " ; ").strip()
            if text.startswith("<"):
                key, closed, value = text[1:].partition(">")
                if not closed:
                    raise self.error(f"metadata should read <KEY> value, got {text!r}")
                self.meta[key.strip().upper()] = value.strip()
            elif text.strip("; "):
                yield text.split()
        self.line = len(self.lines)

    def number(self, word: str, whole: bool = False) -> Any:
        try:
            return int(word) if whole else float(word)
        except ValueError:
            raise self.error(f"expected {'a whole' if whole else 'a'} number, got {word!r}") from None

    def stated(self, key: str) -> int:
        if key not in self.meta:
            raise self.error(f"the metadata do not state <{key}>")
        return self.number(self.meta[key], whole=True)

    def table(self, columns: int, header: str) -> Float[np.ndarray, "rows columns"]:
        """Rows of numbers; one that begins with `header` names the columns."""
        rows = []
        for words in self.rows():
            words = [word for word in words if word != ";"]
            if words[0].lower() == header:
                continue
            if len(words) != columns:
                raise self.error(f"expected {columns} numbers, got {len(words)}: {' '.join(words)!r}")
            rows.append([self.number(word) for word in words])
        return np.array(rows, float).reshape(-1, columns)


def read_roads(net: str | Path, trips: str | Path, nodes: str | Path | None = None) -> Roads:
    """Reads a network from its files; the file of nodes is optional.

    **Arguments:**

    - `net`, `trips`, `nodes`: paths of the files.

    **Returns:** ``Roads``.

    **Raises:** ``ValueError`` that names the file and the line with the error.

    **Example:**

    >>> roads = cb.gallery.grid(2, 2)
    >>> cb.gallery.tntp.write_roads(".", "city", roads)
    >>> cb.gallery.tntp.read_roads("city_net.tntp", "city_trips.tntp").nodes
    4
    """
    file = _File(net)
    table = file.table(len(COLUMNS), "init_node")
    count, zones, links = (file.stated(f"NUMBER OF {what}") for what in ("NODES", "ZONES", "LINKS"))
    if len(table) != links:
        raise file.error(f"the metadata state {links} links, but {len(table)} follow")
    strange = (table[:, :2] < 1) | (table[:, :2] > count)
    if strange.any():
        raise file.error(f"a link ends at node {table[:, :2][strange][0]:g}, but there are {count} nodes")
    demand = read_trips(trips)
    if len(demand) != zones:
        raise file.error(f"the metadata state {zones} zones, but {trips} has {len(demand)}")
    places = None if nodes is None else read_nodes(nodes, count)
    columns = dict(zip(COLUMNS, table.T.copy(), strict=True))
    return Roads(columns, demand, count, int(file.meta.get("FIRST THRU NODE", 1)), places)


def read_trips(path: str | Path) -> Float[np.ndarray, "zones zones"]:
    """Trips from zone to zone; pairs that are not listed have none.

    **Arguments:**

    - `path`: the path of the file.

    **Returns:** a matrix, one row per origin.

    **Example:**

    >>> roads = cb.gallery.grid(2, 2)
    >>> cb.gallery.tntp.write_roads(".", "city", roads)
    >>> cb.gallery.tntp.read_trips("city_trips.tntp").shape
    (4, 4)
    """
    file, origin, entries = _File(path), None, []
    for words in file.rows():
        if words[0].lower() == "origin":
            if len(words) != 2:
                raise file.error(f"expected Origin and a zone, got {' '.join(words)!r}")
            origin = file.number(words[1], whole=True)
            continue
        if origin is None:
            raise file.error("trips come before the first Origin")
        for part in filter(str.strip, " ".join(words).split(";")):
            zone, colon, trips = part.partition(":")
            if not colon:
                raise file.error(f"expected zone : trips, got {part.strip()!r}")
            entries.append((file.line, origin, file.number(zone, whole=True), file.number(trips)))
    zones = file.stated("NUMBER OF ZONES")
    demand = np.zeros((zones, zones))
    for file.line, origin, zone, trips in entries:
        if not (1 <= origin <= zones and 1 <= zone <= zones and trips >= 0):
            raise file.error(f"{trips:g} trips from zone {origin} to {zone}, but there are {zones} zones")
        demand[origin - 1, zone - 1] += trips
    return demand


def read_nodes(path: str | Path, count: int) -> Float[np.ndarray, "nodes 2"]:
    """The positions of nodes 1 to `count`.

    **Arguments:**

    - `path`: the path of the file; `count`: how many nodes there are.

    **Returns:** coordinates, one row per node.

    **Example:**

    >>> roads = cb.gallery.grid(2, 2)
    >>> cb.gallery.tntp.write_roads(".", "city", roads)
    >>> cb.gallery.tntp.read_nodes("city_node.tntp", 4).shape
    (4, 2)
    """
    file, places = _File(path), np.full((count, 2), np.nan)
    for node, *place in file.table(3, "node"):
        if not 1 <= node <= count:
            raise file.error(f"node {node:g}, but there are {count} nodes")
        places[int(node) - 1] = place
    return places


def read_flows(path: str | Path, roads: Roads) -> tuple[Float[np.ndarray, " links"], Float[np.ndarray, " links"]]:
    """Flows and times of the links, in the order of the network.

    **Arguments:**

    - `path`: the path of the file; `roads`: the network.

    **Example:**

    >>> roads = cb.gallery.grid(2, 2)
    >>> links = len(roads.links["capacity"])
    >>> cb.gallery.tntp.write_flows("flow.tntp", roads, np.ones(links), np.ones(links))
    >>> flows, times = cb.gallery.tntp.read_flows("flow.tntp", roads)
    >>> flows.shape
    (8,)
    """
    file = _File(path)
    table = file.table(4, "from")
    known = {(int(a), int(b)): row for a, b, *row in table}
    missing = [pair for pair in zip(*(end + 1 for end in roads.ends), strict=True) if pair not in known]
    if missing:
        raise file.error(f"no flow for the link from {missing[0][0]} to {missing[0][1]}")
    flows, times = np.array([known[int(a) + 1, int(b) + 1] for a, b in zip(*roads.ends, strict=True)]).T
    return flows, times


def write_roads(folder: str | Path, name: str, roads: Roads) -> None:
    """Writes ``name_net.tntp``, ``name_trips.tntp`` and, where places are known, ``name_node.tntp``.

    **Arguments:**

    - `folder`, `name`: where the files go, and how they begin; `roads`: the network.

    **Example:**

    >>> roads = cb.gallery.grid(2, 2)
    >>> cb.gallery.tntp.write_roads(".", "city", roads)
    >>> cb.gallery.tntp.read_folder(".").nodes
    4
    """
    folder, zones = Path(folder), len(roads.trips)
    meta = {"NUMBER OF ZONES": zones, "NUMBER OF NODES": roads.nodes, "FIRST THRU NODE": roads.first_through}
    rows = zip(*(roads.links[column] for column in COLUMNS), strict=True)
    meta["NUMBER OF LINKS"] = len(roads.links["capacity"])
    _write(folder / f"{name}_net.tntp", meta, ["~ " + "\t".join(COLUMNS) + "\t;", *map(_row, rows)])
    pairs = lambda origin: "".join(f"\t{zone} : {_text(n)};" for zone, n in enumerate(origin, 1) if n)
    blocks = (f"Origin {zone}\n{pairs(origin)}" for zone, origin in enumerate(roads.trips, 1))
    meta = {"NUMBER OF ZONES": zones, "TOTAL OD FLOW": _text(roads.trips.sum())}
    _write(folder / f"{name}_trips.tntp", meta, blocks)
    if roads.places is not None:
        rows = ((node, *place) for node, place in enumerate(roads.places, 1))
        _write(folder / f"{name}_node.tntp", {}, ["Node\tX\tY\t;", *map(_row, rows)])


def write_flows(path: str | Path, roads: Roads, flows: np.ndarray, times: np.ndarray) -> None:
    """Writes flows and times of the links.

    **Arguments:**

    - `path`: the path of the file; `roads`: the network; `flows`, `times`: one number per link.

    **Example:**

    >>> roads = cb.gallery.grid(2, 2)
    >>> links = len(roads.links["capacity"])
    >>> cb.gallery.tntp.write_flows("flow.tntp", roads, np.ones(links), np.ones(links))
    """
    rows = zip(*(end + 1 for end in roads.ends), flows, times, strict=True)
    _write(Path(path), {}, ["From\tTo\tVolume\tCost", *("\t".join(map(_text, row)) for row in rows)])


def _text(number: Any) -> str:
    return str(int(number)) if float(number).is_integer() and abs(number) < 1e15 else repr(float(number))


def _row(numbers: Any) -> str:
    return "\t" + "\t".join(map(_text, numbers)) + "\t;"


def _write(path: Path, meta: dict[str, Any], lines: Any) -> None:
    head = [f"<{key}> {value}" for key, value in meta.items()] + (["<END OF METADATA>", ""] if meta else [])
    path.write_text("\n".join([*head, *lines]) + "\n")


def read_folder(folder: str | Path) -> Roads:
    """The network in a folder: ``*_net.tntp``, ``*_trips.tntp``, perhaps ``*_node.tntp``; or an AequilibraE project.

    **Arguments:**

    - `folder`: its path.

    **Returns:** ``Roads``.

    **Example:**

    >>> roads = cb.gallery.grid(2, 2)
    >>> cb.gallery.tntp.write_roads(".", "city", roads)
    >>> cb.gallery.tntp.read_folder(".").nodes
    4
    """
    folder = Path(folder)
    if (folder / "project_database.sqlite").exists():
        return read_project(folder)
    files = {kind: sorted(folder.glob(f"*_{kind}.tntp")) for kind in ("net", "trips", "node")}
    for kind, paths in files.items():
        if len(paths) != 1 and (paths or kind != "node"):
            raise ValueError(f"{folder} should have one file *_{kind}.tntp, but has {len(paths)}.")
    return read_roads(files["net"][0], files["trips"][0], *files["node"])


def read_project(folder: str | Path) -> Roads:
    """Reads an AequilibraE project with a matrix ``demand``, such as its example Sioux Falls; needs that package.

    `folder` is its path.
    """
    import sqlite3

    from aequilibrae.matrix import AequilibraeMatrix  # pyright: ignore[reportMissingImports]

    base = sqlite3.connect(Path(folder) / "project_database.sqlite")
    try:
        fields = (
            "a_node, b_node, capacity_ab, distance, free_flow_time, b, power, direction FROM links ORDER BY link_id"
        )
        links = np.array(base.execute(f"SELECT {fields}").fetchall(), float)
        nodes = base.execute("SELECT node_id, geometry FROM nodes ORDER BY node_id").fetchall()
    finally:
        base.close()
    if np.any(links[:, 7] != 1) or [node for node, _ in nodes] != list(range(1, len(nodes) + 1)):
        raise ValueError(f"{folder}: links should be one-way, and nodes numbered from 1 without gaps.")
    columns = dict(zip(COLUMNS, (*links.T[:7], *np.zeros((2, len(links))), np.ones(len(links))), strict=True))
    matrix = AequilibraeMatrix()
    matrix.load(str(Path(folder) / "matrices" / "demand.aem"))
    trips = np.nan_to_num(np.array(matrix.get_matrix(matrix.names[0]), float))
    matrix.close()
    places = np.array([np.frombuffer(point[6:22], "<f8") for _, point in nodes])  # a corner of its box: the point
    return Roads(columns, trips, len(nodes), 1, places)


def sioux_falls() -> Roads:
    """Sioux Falls, from the example that comes with AequilibraE (for academic use)."""
    from importlib.resources import files
    from tempfile import TemporaryDirectory
    from zipfile import ZipFile

    with TemporaryDirectory() as folder:
        ZipFile(str(files("aequilibrae") / "reference_files" / "sioux_falls.zip")).extractall(folder)
        return read_project(folder)
