"""Which of how many processes this one is, as the environment has it: the launcher's variables, Slurm's, or none."""

import re
from collections.abc import Mapping
from dataclasses import dataclass

COORDINATOR, PROCESSES, PROCESS = "COBILEVEL_COORDINATOR", "COBILEVEL_PROCESSES", "COBILEVEL_PROCESS"
SHARDS, BIND, PARENT = "COBILEVEL_SHARDS", "COBILEVEL_BIND", "COBILEVEL_PARENT"
_KUBERNETES_INDEX = "JOB_COMPLETION_INDEX"  # of a pod in an indexed job
_SLURM = ("SLURM_STEP_NUM_TASKS", "SLURM_PROCID", "SLURM_STEP_NODELIST")  # set by srun, and in no batch script
_FIRST_PORT, _PORTS = 61440, 4096  # Slurm names no port: one of these, by the number of the job


@dataclass(frozen=True)
class Place:
    """One process among several.

    - `coordinator`: ``host:port`` where they meet; the first process listens there, on that address alone.
    - `bind`: where it listens instead, should the name not resolve to an address of its own machine.
    - `shards`: in how many pieces the samples are cut, if that is not left to the number of devices.
    - `parent`: the process that started this one and is to be outlived by none; 0 for any.
    """

    process: int = 0
    processes: int = 1
    coordinator: str = ""
    bind: str = ""
    shards: int | None = None
    parent: int = 0


def place_in(environment: Mapping[str, str]) -> Place:
    """The place of this process; raises, naming the variable, where they make no sense."""
    shards = _number(environment, SHARDS, 1) if environment.get(SHARDS) else None
    if environment.get(PROCESSES):
        place = _named(environment)
    elif all(environment.get(name) for name in _SLURM):
        place = _slurm(environment)
    else:
        return Place(shards=shards)
    if place.process >= place.processes:
        raise ValueError(
            f"this is process {place.process} of {place.processes}, and they are numbered from 0: check {PROCESS} and "
            f"{PROCESSES} (under Slurm, SLURM_PROCID)."
        )
    parent = _number(environment, PARENT, 0) if environment.get(PARENT) else 0
    return Place(place.process, place.processes, place.coordinator, environment.get(BIND, ""), shards, parent)


def _named(environment: Mapping[str, str]) -> Place:
    """By the variables of this library; in an indexed job of Kubernetes, the index of the pod will do."""
    processes = _number(environment, PROCESSES, 1)
    if processes == 1:
        return Place()
    index = PROCESS if environment.get(PROCESS) else _KUBERNETES_INDEX
    if not environment.get(index):
        raise ValueError(f"{PROCESSES} is {processes}, but {PROCESS}, the number of this one from 0 on, is not set.")
    coordinator = environment.get(COORDINATOR, "")
    host, _, port = coordinator.rpartition(":")
    if not host or not port.isdigit():
        raise ValueError(
            f"{COORDINATOR} must be host:port, where process 0 can be reached by all (127.0.0.1:port on one machine), "
            f"got {coordinator!r}."
        )
    return Place(_number(environment, index, 0), processes, coordinator)


def _slurm(environment: Mapping[str, str]) -> Place:
    """By what srun sets for each task; they meet on the first node of the step."""
    count, process, nodes = _SLURM
    processes = _number(environment, count, 1)
    if processes == 1:
        return Place()
    port = _FIRST_PORT + int(environment.get("SLURM_JOB_ID", "0") or 0) % _PORTS
    coordinator = environment.get(COORDINATOR) or f"{first_node(environment[nodes])}:{port}"
    return Place(_number(environment, process, 0), processes, coordinator)


def first_node(names: str) -> str:
    """The first of a list of nodes as Slurm writes it: ``gpu[03-07,9],login1`` gives ``gpu03``."""
    found = re.match(r"([^,\[]+)(?:\[(\w+))?", names)
    if found is None:
        raise ValueError(f"SLURM_STEP_NODELIST is {names!r}, which names no node. Set {COORDINATOR} to host:port.")
    return found.group(1) + (found.group(2) or "")


def _number(environment: Mapping[str, str], name: str, least: int) -> int:
    text = environment[name]
    if not text.strip().isdigit() or int(text) < least:
        raise ValueError(f"{name} must be a whole number, {least} or more, got {text!r}.")
    return int(text)
