"""Groups of paths that one warp runs together: the paths share segments of channels."""

# A lane owns the numbers that paths add to, and reads shared numbers once.

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from tpgen.base.locks import cached_property
from tpgen.kernels.cuda.chips import LANES
from tpgen.kernels.cuda.gathers import Gather
from tpgen.kernels.placement.values import ChannelSchedule, SegmentView
from tpgen.kernels.sweep.statements import Accumulate, Load
from tpgen.kernels.sweep.sweep import PathSweep


@dataclass(frozen=True)
class RegisterSegment:
    """An operand's segment, kept in registers from its first to its last path in a group."""

    view: SegmentView
    first: int  # of the paths of its group
    last: int
    loads: tuple[int, ...]  # components that are read
    opened: bool  # whether some path adds to it


@dataclass(frozen=True)
class PathGroup:
    """Paths that one warp runs together, since the paths share segments."""

    number: int
    paths: tuple[PathSweep, ...]
    held: tuple[RegisterSegment, ...]
    channels: int
    width: int  # lanes for one row
    slot: int  # number of its first 32 channels among those of all groups

    @property
    def rows(self) -> int:
        """Concurrent rows of one warp."""
        return LANES // self.width

    @property
    def chunks(self) -> int:
        return -(-self.channels // LANES)

    @cached_property
    def cost(self) -> int:
        """Statements of one unit."""
        return sum(len(stage.statements) for path in self.paths for stage in path.stages)


class WorkUnit(NamedTuple):
    """Work of one warp at a time: some sums of a gather, or 32 channels of a path group."""

    work: PathGroup | Gather
    chunk: int
    rows: int = 0  # the first set of rows


def make_path_groups(schedule: ChannelSchedule, paths: tuple[PathSweep, ...], rows: int) -> tuple[PathGroup, ...]:
    """Group paths by shared segments of channels, for ``rows`` per block."""
    groups: list[PathGroup] = []
    slot = 0
    for members in _group_paths_that_share_segments(schedule, paths):
        channels = members[0].term.size(schedule.channel(members[0].term))
        width = max(min(next_power_of_two(channels), LANES), LANES // rows)
        group = PathGroup(len(groups), members, _list_segments_in_registers(schedule, members), channels, width, slot)
        groups.append(group)
        slot += group.chunks
    return tuple(groups)


def next_power_of_two(size: int) -> int:
    """Smallest power of two not below ``size``.

    >>> next_power_of_two(5), next_power_of_two(8)
    (8, 8)
    """
    return 1 << (size - 1).bit_length()


def _group_paths_that_share_segments(
    schedule: ChannelSchedule, paths: tuple[PathSweep, ...]
) -> Iterable[tuple[PathSweep, ...]]:
    # classes that share no segment of channels, each in an order in which neighbours share
    classes: list[tuple[set[SegmentView], list[PathSweep]]] = []
    for path in paths:
        views = set(_views_of_path(schedule, path))
        met = [c for c in classes if c[0] & views]
        merged = (views.union(*(c[0] for c in met)), [*(p for c in met for p in c[1]), path])
        classes = [c for c in classes if c not in met] + [merged]
    return [tuple(members) for _, members in classes]


def _views_of_path(schedule: ChannelSchedule, path: PathSweep) -> list[SegmentView]:
    found = [schedule.view(path.term, leg.operand) for leg in path.term.legs]
    return [view for view in found if view]


def _list_segments_in_registers(schedule: ChannelSchedule, paths: tuple[PathSweep, ...]) -> tuple[RegisterSegment, ...]:
    users: dict[SegmentView, list[int]] = {}
    for n, path in enumerate(paths):
        for view in _views_of_path(schedule, path):
            users.setdefault(view, []).append(n)
    made = (_make_register_segment(view, [paths[n] for n in at], at) for view, at in users.items())
    return tuple(held for held in made if held.loads or held.opened)


def _make_register_segment(view: SegmentView, paths: list[PathSweep], positions: list[int]) -> RegisterSegment:
    key = (view.operand, view.segment)
    touching = (s for path in paths for s in path.stages[0].statements if isinstance(s, Load | Accumulate))
    mine = [s for s in touching if (s.target.operand, s.target.segment) == key]
    loads = sorted({s.target.index for s in mine if isinstance(s, Load)})
    return RegisterSegment(
        view, positions[0], positions[-1], tuple(loads), any(isinstance(s, Accumulate) for s in mine)
    )


def assign_units_to_warps(units: Iterable[WorkUnit], warps: int) -> tuple[tuple[WorkUnit, ...], ...]:
    """Assign units to warps: the costliest first, to the least loaded warp."""
    taken: list[list[WorkUnit]] = [[] for _ in range(warps)]
    load = [0] * warps
    for unit in sorted(units, key=lambda u: -u.work.cost):
        least = load.index(min(load))
        taken[least].append(unit)
        load[least] += unit.work.cost
    return tuple(map(tuple, taken))
