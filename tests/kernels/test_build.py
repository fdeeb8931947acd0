"""The compiler, the cache and their faults; every error says the rule and the way out."""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from math import comb
from pathlib import Path

import pytest
import torch

from tests.kernels.plans import call, operands
from tpgen.base.errors import BackendError, EmitError, InputError, KernelError, PlanError
from tpgen.kernels.build import build, cache, compiler
from tpgen.kernels.build.compiler import find_openmp_runtime
from tpgen.kernels.placement.planning import place
from tpgen.kernels.rows import EDGES
from tpgen.kernels.runtime.call import make_product_call
from tpgen.kernels.runtime.description import ProductDescription, read_description
from tpgen.kernels.runtime.ops import describe, kernel_conv, kernel_product, kernel_source, why_kernel_unsupported
from tpgen.kernels.runtime.runtime import Kernels, kernels_of
from tpgen.kernels.runtime.warm import warm
from tpgen.planner.presets import channelwise, full, fully_connected
from tpgen.planner.product import make_plan
from tpgen.planner.strict import MAX_TEXT

PLAN = channelwise("8x0e+8x1o", "0e+1o", "0e+1o")
TEXT = describe(PLAN)


def run_product() -> torch.Tensor:
    """A forward product whose kernel is looked up anew."""
    x1, x2, w, _ = operands(PLAN, 5, torch.float32).values()
    return Kernels(TEXT).run(call("out", x1, x2, w))[0]


def libraries(directory: Path) -> list[Path]:
    return sorted(directory.glob("*.so"))


def test_a_kernel_is_built_once_and_found_again(fresh: Path) -> None:
    run_product()
    first = libraries(fresh)[0].stat().st_mtime_ns
    build._loaded.clear()
    run_product()
    assert [file.stat().st_mtime_ns for file in libraries(fresh)] == [first]
    assert fresh.stat().st_mode & 0o777 == 0o700


def test_info_clear_and_warm(fresh: Path) -> None:
    assert warm([PLAN]) == 2
    info = build.cache_info()
    assert (info.path, info.entries) == (str(fresh), 2)
    assert "2 kernels" in str(info)
    assert build.cache_clear() == 2
    assert build.cache_info().entries == 0


def test_warm_builds_what_a_convolution_with_forces_needs(fresh: Path) -> None:
    assert warm([PLAN], dtypes=[torch.float64], convolution=True, forces=True) == 6
    before = libraries(fresh)
    x1, x2, w, _ = (x.requires_grad_() for x in operands(PLAN, 6).values())
    inner, index = x2 * 1.0, torch.arange(6)
    out = kernel_conv(x1, inner, w, index, index, 6, TEXT)
    (force,) = torch.autograd.grad(out, inner, torch.ones_like(out), create_graph=True)
    torch.autograd.grad((out.sum(), force.sum()), (x1, x2, w), create_graph=True)
    first = torch.autograd.grad(out.sin().sum(), (x1, x2, w), create_graph=True)
    torch.autograd.grad(sum(x.sin().sum() for x in first), (x1, x2, w))
    assert libraries(fresh) == before


def test_a_new_thread_takes_torchs_number_of_threads() -> None:
    given, product = operands(PLAN, 5, torch.float32), Kernels(TEXT)
    forward = call("out", given["x1"], given["x2"], given["w"])
    product.run(forward)  # built here: the thread is to do nothing but call the kernel
    runtime, before = ctypes.CDLL(find_openmp_runtime() or None), torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with ThreadPoolExecutor(1) as pool:
            pool.submit(product.run, forward).result()
            assert pool.submit(runtime.omp_get_max_threads).result() == 1
    finally:
        torch.set_num_threads(before)


def test_products_without_paths_have_text_and_nothing_to_build(fresh: Path) -> None:
    for irreps in (("4x0e", "0e", "3x0e"), ("0x0e", "0x0e", "0x0e")):
        plan = make_plan(*irreps, [])
        for opened in (("out",), ("x1", "x2", "w")):
            for rules in ((), EDGES):
                source = ProductDescription(plan, ("mul_ir",) * 3).source(
                    make_product_call(opened), torch.float32, rules
                )
                assert "tpgen_kernel" in source.text
        assert warm([plan]) == 0


@pytest.mark.parametrize("damage", [lambda whole: whole[:100], lambda whole: whole[:-1] + b"x", lambda whole: b""])
def test_a_damaged_library_is_built_again(fresh: Path, damage) -> None:
    run_product()
    library = libraries(fresh)[0]
    whole = library.read_bytes()
    replaced = library.with_name("damaged")
    replaced.write_bytes(damage(whole))
    os.replace(replaced, library)
    build._loaded.clear()
    run_product()
    assert library.read_bytes()[:4] == b"\x7fELF"
    assert len(library.read_bytes()) > 100


def test_ten_threads_build_one_kernel(fresh: Path) -> None:
    with ThreadPoolExecutor(10) as pool:
        list(pool.map(lambda _: run_product(), range(10)))
    assert len(libraries(fresh)) == 1


def test_a_directory_that_others_may_write_to_is_not_used(fresh: Path) -> None:
    fresh.mkdir(parents=True)
    fresh.chmod(0o777)
    with pytest.raises(BackendError, match=r"\(mode 777\).*TPGEN_CACHE_DIR"):
        run_product()


def test_a_cache_that_cannot_be_written_falls_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("not a directory")
    monkeypatch.setenv("TPGEN_CACHE_DIR", str(blocked))
    monkeypatch.setattr(build, "_loaded", {})
    cache.forget_directory()
    with pytest.warns(UserWarning, match="cannot write its kernel cache.*kept for this process only"):
        assert run_product().shape == (5, PLAN.irreps_out.dim)


def test_no_compiler(fresh: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TPGEN_CXX", "none")
    with pytest.raises(BackendError, match=r"TPGEN_CXX=none.*'grouped'"):
        run_product()
    assert str(why_kernel_unsupported(PLAN)).endswith("and TPGEN_CXX=none forbids one")
    monkeypatch.setenv("TPGEN_CXX", "g--")
    with pytest.raises(BackendError, match=r"TPGEN_CXX names 'g--'.*9"):
        run_product()
    monkeypatch.delenv("TPGEN_CXX")
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setattr(compiler, "find_spec", lambda _: None)
    compiler._first_usable_compiler.cache_clear()
    with pytest.raises(BackendError, match=r"and none was found: install g\+\+ 9.*pip install ziglang"):
        run_product()


def test_a_compiler_that_fails_shows_command_error_and_source(
    fresh: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = tmp_path / "bad-compiler"
    script.write_text("#!/bin/sh\necho 'kernel.cpp:1: error: no such thing' >&2\nexit 1\n")
    script.chmod(0o755)
    monkeypatch.setenv("TPGEN_CXX", str(script))
    with pytest.raises(
        KernelError, match=r"compiler failed: .*bad-compiler -std=.*\n.*first error: .*no such thing\n.*kept at .*cpp"
    ) as caught:
        build.load_kernel(kernel_source(PLAN).text)
    kept = str(caught.value).split("kept at ")[1].split("\n")[0]
    assert "path 0: 8x0e x 1x0e -> 8x0e (uvu)" in Path(kept).read_text()


def test_a_compiler_that_cannot_run(fresh: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = tmp_path / "no-format"
    script.write_bytes(b"\x00\x01")
    script.chmod(0o755)
    monkeypatch.setenv("TPGEN_CXX", str(script))
    with pytest.raises(KernelError, match=r"could not be run: .*no-format"):
        build.load_kernel(kernel_source(PLAN).text)


def test_torch_keeps_the_only_openmp_runtime(fresh: Path) -> None:
    run_product()
    maps = Path("/proc/self/maps")
    if not maps.exists():
        pytest.skip("needs /proc")
    runtimes = {
        line.split()[-1]
        for line in maps.read_text().splitlines()
        if "libgomp" in line or "libiomp" in line or "libomp" in line
    }
    assert len(runtimes) == 1, runtimes


# -- text --------------------------------------------------------------------------------------------------------------


def test_text_is_the_same_in_every_process() -> None:
    code = (
        "import sys, hashlib; from tpgen.kernels.runtime.description import read_description, kernel_source;"
        "plan = read_description(sys.argv[1]).plan;"
        "text = ''.join(kernel_source(plan, 'mul_ir', d).text for d in ('forward', 'backward'));"
        "print(hashlib.sha256(text.encode()).hexdigest())"
    )
    texts = {
        subprocess.run(
            [sys.executable, "-c", code, TEXT],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(texts) == 1


@pytest.mark.parametrize("plan", [PLAN, fully_connected("2x0e+1o", "0e+1o", "2x1o")])
@pytest.mark.parametrize("direction", ["forward", "backward"])
def test_every_path_has_its_lines(plan, direction: str) -> None:
    source = kernel_source(plan, "mul_ir", direction)
    lines = source.text.splitlines()
    assert len(lines) == len(source.line_paths) == len(source.line_parts)
    parts = list(dict.fromkeys(source.line_parts))
    assert parts[:2] == ["schedule", "prelude"]
    assert parts[-1] == "driver"
    for path in plan.paths:
        assert any(f"// path {path.index}:" in lines[n - 1] for n in source.lines_of(path.index))


def test_text_names_no_file_and_includes_nothing() -> None:
    text = kernel_source(PLAN).text
    assert "#include" not in text
    assert "/home" not in text


def test_unknown_direction_and_slots() -> None:
    with pytest.raises(EmitError, match="unknown direction 'sideways'; known directions: forward, backward"):
        kernel_source(PLAN, direction="sideways")
    schedule = ProductDescription(PLAN, ("mul_ir",) * 3).schedule(torch.float32)
    with pytest.raises(EmitError, match="unknown slot 'y'; known slots: x1, x2, w, out"):
        place(schedule, ("y",))
    with pytest.raises(EmitError, match="an index finds the rows of one at most"):
        place(schedule, ("x1", "out"), EDGES)


def test_what_kernels_do_not_do() -> None:
    assert why_kernel_unsupported(PLAN) is None
    assert why_kernel_unsupported(PLAN, device="xpu") == "kernels run on the CPU or CUDA GPUs, not on xpu"
    assert "not in float16" in str(why_kernel_unsupported(PLAN, dtype=torch.float16))
    large = full("+".join(f"{degree}e" for degree in range(9)), "+".join(f"{degree}e" for degree in range(9)))
    assert "a kernel holds up to 20000 coupling entries" in str(why_kernel_unsupported(large))
    wide = make_plan("2000x0e", "2000x0e", f"{comb(2000, 2)}x0e", [(0, 0, 0, "uvu<v", False)])
    assert "a kernel lists up to 262144 pairs of copies" in str(why_kernel_unsupported(wide))


# -- descriptions and tensors ------------------------------------------------------------------------------------------


def changed(**fields: object) -> str:
    return json.dumps({**json.loads(TEXT), **fields})


@pytest.mark.parametrize(
    "text, message",
    [
        ("", "not valid JSON"),
        ("[" * 100000, "not valid JSON"),
        (TEXT.replace("1.0]", "1" * 5000 + "]", 1), "not valid JSON"),
        (TEXT.replace("1.0]", "NaN]", 1), "NaN is not a number that a plan may hold"),
        (TEXT.replace("[0,0,0", "[0,0,99999", 1), "instruction 0"),
        (TEXT.replace("[0,0,0", "[0,0,-1", 1), "indices must be small integers, got .-1"),
        (TEXT + " " * MAX_TEXT, "must be text of at most"),
        ("[]", "must be an object with the fields check_index, format, layout, paths, plan, in this order"),
        (changed(check_index=1), "check_index must be true or false, got '1'"),
        (changed(extra=1), "must be an object with the fields"),
        (changed(format="tpgen.kernel/9"), "format must be 'tpgen.kernel/1'"),
        (changed(layout="mul_ir"), "layout must be a list of names"),
        (changed(layout=["mul_ir", "mul_ir", "; rm"]), "unknown layout '; rm'"),
        (changed(plan={}), "plan field 'format': is missing"),
        (changed(plan={**json.loads(PLAN.to_json()), "irreps_in1": "99999999x20e"}), "irreps_in1"),
        (
            changed(plan={**json.loads(PLAN.to_json()), "instructions": [["0", 0, 0, "uvu", True, 1.0]]}),
            "indices must be small",
        ),
    ],
)
def test_hostile_descriptions(text: str, message: str) -> None:
    with pytest.raises(PlanError, match=message):
        read_description(text)
    with pytest.raises(PlanError, match=message):
        kernel_product(torch.ones(1, 32), torch.ones(1, 4), None, text)


@pytest.mark.parametrize(
    "change, message",
    [
        ({"x1": torch.ones(5, 31)}, r"x1 must have shape \(5, 32\), got \(5, 31\)"),
        ({"x2": torch.ones(5, 3)}, r"x2 must have shape \(rows, 4\), got \(5, 3\)"),
        ({"x1": torch.ones(4, 32)}, r"x1 must have shape \(5, 32\), got \(4, 32\)"),
        ({"w": torch.ones(PLAN.weight_numel)}, r"w must have shape \(5, \d+\), got"),
        (
            {"x1": torch.ones(5, 32, dtype=torch.float16)},
            r"x1 is float16, and kernels compute in .*: convert it with \.float\(\) .*or use strategy='grouped'",
        ),
    ],
)
def test_tensors_that_do_not_fit(change: dict, message: str) -> None:
    given = {**operands(PLAN, 5, torch.float16 if "float16" in str(change.get("x1")) else torch.float32), **change}
    if given["x1"].dtype == torch.float16:
        given = {name: x.to(given["x1"].dtype) for name, x in given.items()}
    with pytest.raises(InputError, match=message):
        kernel_product(given["x1"], given["x2"], given["w"], TEXT)


def test_a_product_is_prepared_once() -> None:
    assert kernels_of(TEXT) is kernels_of(describe(PLAN))
