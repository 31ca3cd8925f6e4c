"""Networks in TNTP files: what is written is read back, and what is wrong is named with its file and line."""

import numpy as np
import pytest

import cobilevel as cb
from cobilevel.gallery import tntp


@pytest.fixture(scope="module")
def roads():
    return cb.gallery.grid(2, 3, seed=1)


@pytest.fixture
def folder(roads, tmp_path):
    tntp.write_roads(tmp_path, "Small", roads)
    return tmp_path


def test_a_network_is_read_back_as_it_was(roads, folder):
    again = tntp.read_folder(folder)
    assert (again.nodes, again.first_through) == (roads.nodes, roads.first_through)
    np.testing.assert_array_equal(again.trips, roads.trips)
    np.testing.assert_array_equal(again.places, roads.places)
    for name in tntp.COLUMNS:
        np.testing.assert_array_equal(again.links[name], roads.links[name])


def test_flows_are_read_back_in_the_order_of_the_links(roads, tmp_path):
    flows, times = np.random.default_rng(0).uniform(0, 1e4, (2, len(roads.links["capacity"])))
    tntp.write_flows(tmp_path / "flow.tntp", roads, flows, times)
    lines = (tmp_path / "flow.tntp").read_text().splitlines()
    (tmp_path / "flow.tntp").write_text("\n".join([lines[0], *lines[:0:-1]]))  # another order
    for read, wrote in zip(tntp.read_flows(tmp_path / "flow.tntp", roads), (flows, times), strict=True):
        np.testing.assert_array_equal(read, wrote)
    (tmp_path / "flow.tntp").write_text("\n".join(lines[:-1]))
    with pytest.raises(ValueError, match=r"flow.tntp, line \d+: no flow for the link"):
        tntp.read_flows(tmp_path / "flow.tntp", roads)


def test_the_format_as_it_is_published(tmp_path):
    """Tabs and blanks, comments, several pairs a line, origins of their own, no file of nodes."""
    net = tmp_path / "Two_net.tntp"
    net.write_text(
        "<NUMBER OF ZONES> 2\n<NUMBER OF NODES> 2\n<FIRST THRU NODE> 1\n<NUMBER OF LINKS> 2\t\n"
        "<END OF METADATA>\t\t\n\n\n"
        "~ \tinit_node\tterm_node\tcapacity\tlength\tfree_flow_time\tb\tpower\tspeed\ttoll\tlink_type\t;\n"
        "\t1\t2\t25900.20064\t6\t6\t0.15\t4\t0\t0\t1\t;\n\t2\t1\t25900.20064\t6\t6\t0.15\t4\t0\t0\t1\t;\n"
    )
    (tmp_path / "Two_trips.tntp").write_text(
        "<NUMBER OF ZONES> 2\n<TOTAL OD FLOW> 300.5\n<END OF METADATA>\n\n"
        "Origin \t1 \n    1 :      0.0;     2 :    100.0;  \n\nOrigin 2\n 1 : 200.5; 2 : 0.0;\n"
    )
    roads = tntp.read_folder(tmp_path)
    np.testing.assert_array_equal(roads.trips, [[0, 100], [200.5, 0]])
    np.testing.assert_array_equal(roads.links["capacity"], [25900.20064] * 2)
    assert roads.places is None


@pytest.mark.parametrize(
    ("file", "old", "new", "message"),
    [
        ("net", "\t4\t0\t0\t1\t;", "\tfour\t0\t0\t1\t;", r"Small_net.tntp, line 8: expected a number, got 'four'"),
        ("net", "\t4\t0\t0\t1\t;", "\t4\t0\t1\t;", r"line 8: expected 10 numbers, got 9"),
        ("net", "<NUMBER OF LINKS> 14", "<NUMBER OF LINKS> 15", r"state 15 links, but 14 follow"),
        ("net", "<NUMBER OF NODES> 6", "<NUMBER OF NODES> 5", r"ends at node 6, but there are 5"),
        ("net", "<NUMBER OF ZONES> 6", "<ZONES> 6", r"do not state <NUMBER OF ZONES>"),
        ("net", "<NUMBER OF ZONES> 6", "<NUMBER OF ZONES 6", r"line 1: metadata should read"),
        ("trips", "\t2 : ", "\t2 = ", r"Small_trips.tntp, line 6: expected zone : trips"),
        ("trips", "Origin 1\n", "", r"line 5: trips come before the first Origin"),
        ("trips", "Origin 6", "Origin 7", r"line 16: .* trips from zone 7 .* there are 6 zones"),
        ("node", "\n\t6\t", "\n\t7\t", r"Small_node.tntp, line 7: node 7, but there are 6"),
    ],
)
def test_what_is_wrong_is_named_with_its_line(folder, file, old, new, message):
    path = folder / f"Small_{file}.tntp"
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))
    with pytest.raises(ValueError, match=message):
        tntp.read_folder(folder)


def test_a_folder_has_one_network(folder):
    (folder / "Other_net.tntp").write_text("")
    with pytest.raises(ValueError, match=r"one file \*_net.tntp, but has 2"):
        tntp.read_folder(folder)


def test_sioux_falls_of_aequilibrae():
    pytest.importorskip("aequilibrae")
    roads = tntp.sioux_falls()
    assert (roads.nodes, len(roads.links["capacity"]), roads.trips.sum()) == (24, 76, 360600)
