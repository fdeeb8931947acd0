"""Passes over emitted graphs: functions graph -> graph."""

from torch import fx


def put_on_streams(graph: fx.Graph, streams: int) -> fx.Graph:
    return graph
