"""Law of edges and masks."""

from __future__ import annotations

from contextlib import suppress

import torch

from tpgen.tools.verification.findings import GotAndExpectedOrReason, NotCompared
from tpgen.tools.verification.graphs import select_edges
from tpgen.tools.verification.indices import EDGES
from tpgen.tools.verification.laws import GotAndExpectedByPart, pair_results, prefix_part_names
from tpgen.tools.verification.reading import count_rows
from tpgen.tools.verification.subject import ModuleUnderTest, last_dict_key
from tpgen.tools.verification.systems import call_on_graph, compare_edge_orders, require_parsed_graph_inputs

NO_MASK = "more edges where {} is True, or False, change results: padding may count, or both are edges"
_MASKS = ("mask", "valid", "real", "pad")  # parts of names
_MORE, _NEUTRAL = 3, 1e-5  # edges that are added, and how far these may move results


def compare_edges_and_masks(subject: ModuleUnderTest) -> GotAndExpectedByPart:
    """Compare results of permuted edges, and of more masked edges."""
    return {**compare_edge_orders(subject), **_compare_after_repeating_masked_edges(subject)}


def _compare_after_repeating_masked_edges(subject: ModuleUnderTest) -> dict[str, GotAndExpectedOrReason]:
    # a mask leaves out edges of True or of False, and more of these change nothing
    parsed, found = require_parsed_graph_inputs(subject), dict[str, GotAndExpectedOrReason]()
    for name, x in parsed.values.items():
        named = any(word in last_dict_key(name).lower() for word in _MASKS)
        if not named or x.dtype != torch.bool or parsed.roles[name] != EDGES or parsed.edges is None:
            continue
        x = parsed.edges.rows_of_edges(x)
        said = f"more edges that {last_dict_key(name)} leaves out"
        for value in x.unique() if len(x.unique()) == 2 else ():
            repeated = torch.cat([torch.arange(len(x)), (x == value).nonzero()[-1].repeat(_MORE)])
            with suppress(NotCompared):
                graphs = [select_edges(parsed.graph, index) for index in (repeated, repeated[: len(x)])]
                more, straight = (call_on_graph(subject, graph) for graph in graphs)
                same = {n: y for n, y in straight.items() if count_rows(y, subject.result_rule(n)) != len(x)}
                compared = prefix_part_names(said, pair_results(more, same))
                alike = all(torch.allclose(a, b, rtol=_NEUTRAL, atol=_NEUTRAL) for a, b in compared.values())
                if alike:
                    return {**found, **compared}
                found[said] = NO_MASK.format(last_dict_key(name))
    return found
