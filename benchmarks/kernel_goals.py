"""What the generated CPU kernels are to reach, row by row.  A new row is an entry of `GOALS`."""

from __future__ import annotations

from functools import partial

import torch

from benchmarks.goals import Goal, at_least, at_most
from benchmarks.measures import (
    against_einsum,
    cold_build,
    convolution,
    convolution_memory,
    layouts,
    matrix_product,
    moves,
    speed,
    threads,
    warm_start,
)
from tpgen.planner.problems import PROBLEMS

CHANNELWISE = ("mace-medium", "mace-large", "nequip-lips", "nequip-aspirin", "nequip-toluene")
CONVOLUTIONS = ("mace-medium", "nequip-lips")
ROOFLINE = tuple(name for name, problem in PROBLEMS.items() if problem.suite == "roofline")
EVERY = tuple(name for name, problem in PROBLEMS.items() if problem.suite != "roofline")
STARTED = (*CHANNELWISE, "article", "diffdock-l1", "e3nn-bench")


_ALL = (
    Goal("forward", "channelwise, forward, a fresh output each call", {"forward": at_least(10)}, CHANNELWISE, speed),
    Goal("backward", "channelwise, forward and backward (x, y, w)", {"backward": at_least(10)}, CHANNELWISE, speed),
    Goal(
        "force",
        "channelwise, force training (forward, d/dy with graph, gradients of both)",
        {"double": at_least(8)},
        CHANNELWISE,
        speed,
    ),
    Goal(
        "float64",
        "channelwise in float64, forward and backward",
        {"backward": at_least(6)},
        CHANNELWISE,
        partial(speed, dtype=torch.float64),
    ),
    Goal(
        "bandwidth",
        "channelwise, forward against a warm copy that moves as many bytes",
        {"forward": at_most(1.5)},
        CHANNELWISE,
        moves,
    ),
    Goal(
        "layouts",
        "channelwise, mul_ir against ir_mul, the kernels alone",
        {"forward": at_most(1.3), "backward": at_most(1.3)},
        CHANNELWISE,
        layouts,
    ),
    Goal("mixed-mul", "mixed-mul, forward and backward", {"backward": at_least(8)}, ("mixed-mul",), speed),
    Goal(
        "conv",
        "TensorProductConv, 2,000 nodes, 40,000 edges, against e3nn's product and index_add",
        {"forward": at_least(12), "backward": at_least(10)},
        CONVOLUTIONS,
        convolution,
    ),
    Goal(
        "conv-memory",
        "the same, memory beyond operands and results against what the nodes' output takes",
        {"forward": at_most(1), "backward": at_most(1)},
        CONVOLUTIONS,
        convolution_memory,
    ),
    Goal(
        "article",
        "article, 32 rows, against e3nn script",
        {"forward": at_least(10), "backward": at_least(12)},
        ("article",),
        partial(speed, against=("e3nn/script",)),
    ),
    Goal(
        "connected",
        "tetris-1 and e3nn-bench, 1,000 rows, forward and backward",
        {"backward": at_least(6)},
        ("tetris-1", "e3nn-bench"),
        speed,
    ),
    Goal(
        "diffdock",
        "diffdock-l1, 2,000 rows",
        {"forward": at_least(2), "backward": at_least(10)},
        ("diffdock-l1",),
        speed,
    ),
    Goal(
        "self-connection",
        "self-connection, 1,000 rows, forward and backward",
        {"backward": at_least(4)},
        ("self-connection",),
        speed,
    ),
    Goal(
        "matrix",
        "self-connection, forward against one matrix product with the same FLOPs",
        {"forward": at_most(1.6)},
        ("self-connection",),
        matrix_product,
    ),
    Goal(
        "elementwise",
        "elementwise, 2,000 rows, forward and backward",
        {"backward": at_least(6)},
        ("elementwise",),
        speed,
    ),
    Goal(
        "cold",
        "cold build of mace-large, forward and backward kernels",
        {"build": at_most(4, "s")},
        ("mace-large",),
        cold_build,
    ),
    Goal(
        "warm",
        "warm start of a product",
        {"start": at_most(0.05, "s")},
        ("products",),
        partial(warm_start, products=STARTED),
    ),
    Goal(
        "threads",
        "channelwise, two threads against one",
        {"forward": at_least(1.6), "backward": at_least(1.6)},
        CHANNELWISE,
        threads,
    ),
    Goal(
        "auto",
        "what auto takes against einsum, never slower but for noise",
        {"forward": at_least(0.95), "backward": at_least(0.95)},
        EVERY,
        against_einsum,
    ),
    Goal("roofline", "one path each, for the plot", {}, ROOFLINE, moves),
)

GOALS: dict[str, Goal] = {goal.name: goal for goal in _ALL}
