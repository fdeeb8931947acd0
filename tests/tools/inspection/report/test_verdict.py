"""What the verdict of a compile report says of figures that are known."""

from tpgen.tools.inspection.report.values import write_verdict


def _timed(backend: str, seconds: float, error: float, spread: float = 0.1) -> dict:
    steps = {"forward_seconds": seconds / 3, "step_seconds": seconds, "spread": spread}
    return {"backend": backend, "error": error, "gradient_error": None, **steps}


def test_the_verdict_says_what_to_do() -> None:
    broken = {"reason": "a branch\nat length", "where": ["a.py:3 in forward: if x.sum() > 0"]}
    partitions = [{"partitioner": name, "bytes": size} for name, size in (("default", 5000), ("min-cut", 1000))]
    found = write_verdict(
        {
            "graphs": {"graphs": [{}, {}], "breaks": [broken]},
            "partition": {"partitions": partitions},
            "backends": {"backends": [_timed("eager", 0.003, 1e-7), _timed("inductor", 0.001, 1e-2)]},
        }
    )
    assert found["graphs"] == "2, 1 break; the first: a branch at a.py:3 in forward: if x.sum() > 0"
    assert found["saved for backward"] == "5 kB default, 1 kB min-cut"
    assert found["forward / forward+backward"] == "eager 1.00 ms / 3.00 ms, inductor 333 µs / 1.00 ms"
    assert found["numerics"] == "largest relative error 1.0e-02"
    for advice in (
        "take the break out of forward (at a.py:3",
        "(min-cut): it saves 1 kB, not 5 kB",
        "compile with Inductor: 3.00× as fast as eager",
        "look at the numbers of inductor",
    ):
        assert advice in found["to do"]
    slow = {"backends": {"backends": [_timed("eager", 0.001, 0.0), _timed("inductor", 0.002, 0.0)]}}
    assert write_verdict(slow)["to do"] == "leave it eager: compiled it runs 0.50× as fast"
    assert write_verdict({})["to do"] == "nothing"


def test_times_that_lie_apart_give_no_advice() -> None:
    """On a busy machine the same product was 50 times as fast compiled, and then 50 times as slow."""
    rows = [_timed("eager", 0.05, 0.0), _timed("inductor", 0.001, 0.0, spread=0.8)]
    assert write_verdict({"backends": {"backends": rows}})["to do"] == (
        "measure again: times of the same call lie 80 % apart, so they decide nothing"
    )
