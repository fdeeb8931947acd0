"""The pages that the tests open, and what a user does on them."""

from pathlib import Path
from typing import Any

import tpgen
from tpgen.planner.plan import Plan
from tpgen.planner.presets import channelwise
from tpgen.planner.problems import PROBLEMS
from tpgen.tools.inspection.costs.roofline import Ceilings

HERE = Path(__file__).parent
STYLE = (Path(tpgen.__file__).parent / "tools/inspection/explorer/explorer.css").read_text(encoding="utf-8")
GIVEN = Ceilings(bandwidth=1e10, flops=1e11)
KERNELS = ("sweep", "placement", "cpp", "cpp_backward", "cuda", "cuda_backward")
STAGES = ("plan", "form", "graph", "code", "script", "joint", *KERNELS)
ARTICLE = PROBLEMS["article"].plan


def large() -> Plan:
    """68 paths."""
    return channelwise("32x0e+32x0o+32x1o+32x1e+32x2e+32x2o+32x3o+32x3e", "0e+1o+2e+3o", "0e+0o+1o+1e+2e+2o+3o+3e")


def keys(page: Any, *pressed: str) -> None:
    from selenium.webdriver.common.by import By

    page.find_element(By.TAG_NAME, "body").send_keys(*pressed)


def click(page: Any, selector: str) -> None:
    page.execute_script(
        "document.querySelector(arguments[0]).dispatchEvent(new MouseEvent('click', {bubbles: true}))", selector
    )


def lit(page: Any) -> dict[str, list[int]]:
    """Numbers of the lit lines of every pane."""
    return page.execute_script(
        "const found = {}; for (const pane of document.querySelectorAll('.pane')) found[pane.id.slice(5)] = "
        "[...pane.querySelectorAll('.code b')].flatMap((line, n) => "
        "line.classList.contains('lit') || line.classList.contains('own') ? [n + 1] : []); return found"
    )
