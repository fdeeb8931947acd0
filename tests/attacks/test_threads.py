"""Generated kernels and the runtime's table under ThreadSanitizer.

It knows of threads, locks and atomics, and finds two threads that touch the same memory without any of these between.
OpenMP's runtimes are not instrumented: kernels run on threads of the harness instead, by the same entry.  So what is
shown is that the generated code divides its work without races; the OpenMP runtime itself is taken at its word.
"""

from __future__ import annotations

import platform
import shutil
import subprocess
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

from tests.machine import needs_compiler
from tpgen.form.form import form_of
from tpgen.kernels.build.build import count_cores
from tpgen.kernels.build.compiler import cpu_target, need_compiler
from tpgen.kernels.cpp.generate import generate
from tpgen.kernels.placement.planning import place, plan_schedule
from tpgen.kernels.rows import EDGES
from tpgen.kernels.runtime.native.source import write_process_runtime_source
from tpgen.planner.linear import make_linear_plan
from tpgen.planner.presets import channelwise, fully_connected

pytestmark = [pytest.mark.slow, needs_compiler]

HERE = Path(__file__).parent
ROWS, NODES = 700, 40
PLANS = {
    "channelwise": channelwise("17x0e+16x1o", "0e+1o", "0e+1o"),
    "shared": fully_connected("8x0e+8x1o", "2x0e+1o", "8x0e+8x1o"),
    "linear": make_linear_plan("32x0e+16x1o", "32x0e+16x1o"),
}
# plan, open slots, whether rows are edges
CORPUS = [
    ("channelwise", ("out",), False),
    ("channelwise", ("x1", "x2", "w"), False),
    ("channelwise", ("out",), True),
    ("channelwise", ("x1", "x2", "w"), True),
    ("shared", ("out",), False),
    ("shared", ("x1", "x2", "w"), False),
    ("shared", ("x1", "x2", "w"), True),
    ("linear", ("out",), False),
    ("linear", ("x1", "w"), False),
]
SLOTS = ("x1", "x2", "w", "out")
_CALL = """
extern "C" int kernel_{n}(float**, float**, const void*, i64, i64);
static int call_{n}(float** x, float** y, i64 rows, i64* src, i64* dst, i64 nodes) {{
  float* opened[] = {{{places}}};
  const struct {{ const void* at; i64 size, how; }} indices[] = {{{{src, nodes, 1}}, {{dst, nodes, 1}}}};
  return kernel_{n}(x, opened, indices, rows, 1);
}}
"""


def case(n: int, name: str, opened: tuple[str, ...], indexed: bool) -> tuple[str, str, str]:
    """The text of a kernel, how the harness calls it, and its row in the harness's table."""
    form = form_of(PLANS[name], "mul_ir")
    text = generate(place(plan_schedule(form, cpu_target(torch.float32)), opened, EDGES if indexed else ())).text
    places = ", ".join(f"y[{SLOTS.index(slot)}]" for slot in opened)
    dims = {o.name: o.dim for o in form.operands}
    rows = {"x1": NODES if indexed else ROWS, "x2": ROWS, "w": ROWS if name == "channelwise" else 1,
            "out": NODES if indexed else ROWS}  # fmt: skip
    sizes = [dims.get(slot, 0) * rows[slot] for slot in SLOTS]
    given = [0 if slot == "out" and "out" in opened else size for slot, size in zip(SLOTS, sizes, strict=True)]
    room = [size if slot in opened else 0 for slot, size in zip(SLOTS, sizes, strict=True)]
    title = f"{name} {'*'.join(opened)}{' of edges' if indexed else ''}"
    row = f'{{"{title}", call_{n}, {{{numbers(given)}}}, {{{numbers(room)}}}, {ROWS}, {NODES}}}'
    return text, _CALL.format(n=n, places=places), row


def numbers(values: list[int]) -> str:
    return ", ".join(map(str, values))


def build(folder: Path, sources: dict[str, list[str]]) -> Path:
    """A program of these sources, each with its flags, instrumented."""
    flags = ["-fsanitize=thread", "-g", "-O1", "-w", *need_compiler().instructions.flags, "-std=c++17"]
    compiler, objects = need_compiler().program, [str(folder / f"{name}.o") for name in sources]
    commands = [[*compiler, *flags, *more, "-c", "-o", made, str(folder / f"{name}.cpp")]
                for made, (name, more) in zip(objects, sources.items(), strict=True)]  # fmt: skip
    with ThreadPoolExecutor(count_cores()) as pool:
        list(pool.map(lambda command: subprocess.run(command, check=True), commands))
    program = folder / "program"
    subprocess.run([*compiler, "-fsanitize=thread", "-o", str(program), *objects, "-lpthread"], check=True)
    return program


def run(program: Path) -> subprocess.CompletedProcess[str]:
    """Without random addresses, which some sanitizers cannot have."""
    alike = shutil.which("setarch")
    before = [alike, platform.machine(), "-R"] if alike else []
    return subprocess.run([*before, str(program)], capture_output=True, text=True, timeout=600, check=False)


def harness(folder: Path, corpus: list, change: Callable[[str], str] = str) -> Path:
    calls, rows, sources = "", [], {}
    for n, (name, opened, indexed) in enumerate(corpus):
        text, call, row = case(n, name, opened, indexed)
        (folder / f"kernel_{n}.cpp").write_text(change(text), encoding="utf-8")
        sources[f"kernel_{n}"] = [f"-Dtpgen_kernel=kernel_{n}", "-DTPGEN_THREADS"]
        calls, rows = calls + call, [*rows, row]
    table = "static const Case CASES[] = {\n" + ",\n".join(rows) + "};\n"
    main = "int main() { int bad = 0; for (const Case& c : CASES) bad |= check(c); return bad != 0; }\n"
    (folder / "main.cpp").write_text((HERE / "threads.cpp").read_text() + calls + table + main, encoding="utf-8")
    return build(folder, {**sources, "main": []})


@pytest.fixture(scope="module", autouse=True)
def sanitizer(tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("probe")
    (folder / "probe.cpp").write_text("int main() { return 0; }")
    try:
        done = run(build(folder, {"probe": []}))
    except subprocess.CalledProcessError as error:
        pytest.skip(f"{need_compiler()} has no ThreadSanitizer: {error}")
    if done.returncode:
        pytest.skip(f"ThreadSanitizer does not run here: {done.stderr[-200:]}")


def test_kernels_divide_their_work_without_races(tmp_path: Path) -> None:
    done = run(harness(tmp_path, CORPUS))
    assert done.returncode == 0, done.stdout + done.stderr[-3000:]
    assert done.stdout.count(": same\n") == len(CORPUS)


PLANTED = {
    "taken without an atomic": ("__atomic_fetch_add(taken, 1, __ATOMIC_RELAXED)", "(*taken)++"),
    "one part of the sums for all blocks": ("sums + b *", "sums + 0 *"),
}


@pytest.mark.parametrize("planted", PLANTED)
def test_a_planted_race_is_found(tmp_path: Path, planted: str) -> None:
    old, new = PLANTED[planted]

    def change(text: str) -> str:
        assert old in text
        return text.replace(old, new)

    program = harness(tmp_path, [("shared", ("x1", "x2", "w"), False)], change)
    found = (run(program) for _ in range(5))  # on a busy machine one thread may take all blocks
    done = next((one for one in found if one.returncode), None)
    assert done is not None
    assert "data race" in done.stderr


def test_the_table_of_kernels_may_be_filled_while_threads_call(tmp_path: Path) -> None:
    (tmp_path / "runtime.cpp").write_text(write_process_runtime_source(), encoding="utf-8")
    (tmp_path / "main.cpp").write_text((HERE / "table.cpp").read_text(), encoding="utf-8")
    done = run(build(tmp_path, {"runtime": [], "main": []}))
    assert done.returncode == 0, done.stdout + done.stderr[-3000:]
    assert done.stdout == "nothing found\n"
