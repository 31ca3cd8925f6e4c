"""Which process of how many this is, by the variables of the launcher, of Slurm and of Kubernetes."""

import pytest

from cobilevel.cluster.environment import Place, first_node, place_in

NAMED = {"COBILEVEL_PROCESSES": "4", "COBILEVEL_PROCESS": "2", "COBILEVEL_COORDINATOR": "127.0.0.1:5000"}
SLURM = {
    "SLURM_STEP_NUM_TASKS": "8",
    "SLURM_PROCID": "3",
    "SLURM_STEP_NODELIST": "gpu[03-07,9],login1",
    "SLURM_JOB_ID": "4099",
}


def without(given, name):
    return {key: value for key, value in given.items() if key != name}


def test_alone():
    assert place_in({}) == Place()
    assert place_in({"COBILEVEL_PROCESSES": "1", "COBILEVEL_SHARDS": "4"}) == Place(shards=4)


def test_named():
    place = place_in(NAMED | {"COBILEVEL_BIND": "10.0.0.1:5000", "COBILEVEL_PARENT": "17"})
    assert place == Place(2, 4, "127.0.0.1:5000", "10.0.0.1:5000", None, 17)


def test_an_indexed_job_of_kubernetes_numbers_its_pods():
    given = without(NAMED, "COBILEVEL_PROCESS") | {"JOB_COMPLETION_INDEX": "3"}
    assert place_in(given).process == 3
    assert place_in(given | {"COBILEVEL_PROCESS": "1"}).process == 1


def test_slurm():
    assert place_in(SLURM) == Place(3, 8, "gpu03:61443")
    assert place_in(SLURM | {"COBILEVEL_COORDINATOR": "other:7"}).coordinator == "other:7"
    assert place_in(SLURM | NAMED).processes == 4  # what the user states comes first
    assert place_in(without(SLURM, "SLURM_STEP_NODELIST")) == Place()  # a batch script, not a task of srun


@pytest.mark.parametrize(
    ("names", "first"), [("a1", "a1"), ("a1,b2", "a1"), ("node[7,9]", "node7"), ("n-[001-128]", "n-001")]
)
def test_the_first_node(names, first):
    assert first_node(names) == first


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"COBILEVEL_PROCESS": "4"}, "process 4 of 4"),
        ({"COBILEVEL_PROCESS": ""}, "COBILEVEL_PROCESS, the number of this one"),
        ({"COBILEVEL_PROCESS": "-1"}, "COBILEVEL_PROCESS must be a whole number"),
        ({"COBILEVEL_PROCESSES": "many"}, "COBILEVEL_PROCESSES must be a whole number, 1 or more, got 'many'"),
        ({"COBILEVEL_COORDINATOR": "host"}, "COBILEVEL_COORDINATOR must be host:port"),
        ({"COBILEVEL_COORDINATOR": ""}, "COBILEVEL_COORDINATOR must be host:port"),
        ({"COBILEVEL_SHARDS": "0"}, "COBILEVEL_SHARDS must be a whole number, 1 or more"),
    ],
)
def test_what_makes_no_sense_is_named(change, words):
    with pytest.raises(ValueError, match=words):
        place_in(NAMED | change)
