"""`convert`, `restore` and `conversion_report`."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Literal, TypeVar

from torch import nn
from typing_extensions import Unpack

from tpgen.base.errors import InputError, OptionError, TpgenError, a_kind, check_known
from tpgen.compiler.config import MODULE_FIELDS, ConvertOptions
from tpgen.networks.conversion.adapters import check_adapter_swaps, find_package_mismatches, load_adapters_for
from tpgen.networks.conversion.batch_norms import find_batch_norm_swap
from tpgen.networks.conversion.calculators import collect_forward_arguments
from tpgen.networks.conversion.functions_called import describe_e3nn_functions_called
from tpgen.networks.conversion.gates import find_gate_swap
from tpgen.networks.conversion.harmonics import find_harmonics_swap
from tpgen.networks.conversion.linears import find_linear_swap
from tpgen.networks.conversion.obstacles import describe_idle_hooks
from tpgen.networks.conversion.operations.splines import allow_splines_in_swaps, has_splined_nets
from tpgen.networks.conversion.packages import (
    switch_to_installed_classes,
    switch_to_packaged_classes,
    use_installed_classes,
)
from tpgen.networks.conversion.products import find_product_swap
from tpgen.networks.conversion.proof import Proof, Times, copy_network_twice, measure_times, prove_equal
from tpgen.networks.conversion.radial import find_radial_net_swap
from tpgen.networks.conversion.refusals import (
    describe_compiled_program,
    explain_nothing_to_convert,
    get_only_network,
    list_networks,
)
from tpgen.networks.conversion.report import Conversion, Replaced, Stayed
from tpgen.networks.conversion.selection import Names, Selection, apply_selection, make_selection
from tpgen.networks.conversion.swap import (
    ClassSwap,
    KeptModule,
    SwapOrKept,
    apply_swaps,
    describe_computing_code,
    get_swap_mark,
    name_class_with_package,
    undo_if_swapped,
    undo_swaps,
)
from tpgen.networks.conversion.weight_nets import add_weight_net_swaps
from tpgen.networks.served import When, check_when, serve, serve_no_more
from tpgen.nn.checks import refuse_unknown_options
from tpgen.nn.planned import PlannedModule

_OPTIONS = tuple(name for name in MODULE_FIELDS if name != "layout")

_Inputs = Sequence[Any]
_SwapEdit = Callable[[list[ClassSwap]], list[ClassSwap]]
_RADIAL: dict[str, _SwapEdit] = {"net": list, "spline": allow_splines_in_swaps}
_Found = TypeVar("_Found", ClassSwap, KeptModule)
_Network = TypeVar("_Network")
_NamesByModule = dict[nn.Module, tuple[str, ...]]


def convert(
    network: _Network,
    *,
    keep: Names = (),
    only: Names | None = None,
    radial: Literal["net", "spline"] = "net",
    program: When = "auto",
    prove: Any = None,
    measure: Any = None,
    report: Callable[[Conversion], object] | None = None,
    **options: Unpack[ConvertOptions],
) -> _Network:
    """Convert a network in place: modules of e3nn and of known projects compute with tpgen.

    Only classes change: modules keep identity, parameters, buffers, names and hooks, so checkpoints, optimisers and
    wrappers stay valid.  Unconverted modules get a warning, and a reason in the report.

    Raises `TpgenError` if nothing can be converted or the proof fails.  Errors leave the network unchanged.

    >>> from e3nn import o3
    >>> network = nn.ModuleDict({"tp": o3.FullTensorProduct("2x1o", "1o")})
    >>> convert(network)["tp"]
    ConvertedFullTensorProduct(2x1o x 1x1o -> 2x0e+2x1e+2x2e | 6 paths | 0 weights)
    >>> type(restore(network)["tp"]).__name__
    'FullTensorProduct'

    Parameters
    ----------
    network
        a module, or a list, dict or object, such as a calculator, that holds networks.
    keep, only
        modules to leave out, or to convert alone: names of modules, with all parts, or of classes, as in the report:
        ``keep=["layers.0", "e3nn.Linear"]``.  ``*`` matches any text.
    radial
        ``"spline"`` replaces nets of lengths by cubic splines, for inference on a CPU: slopes err by at most a
        millionth of the largest, and gradients of parameters raise an error.
    program
        whether calls run as one program: ``"auto"`` builds one in another process, for calls that came ten times and
        take under 250 ms; True builds at the first call.  `tpgen.ready` waits.  Programs sum in another order: False
        keeps the bits of results.
    prove
        arguments of a call, or a calculator's atoms: compares outputs, gradients and second derivatives with stock in
        float64; reports errors of splines apart.
    measure
        the same: times both.
    report
        function of the `Conversion`, as in ``report=print``; see `conversion_report`.
    options
        ``strategy``, ``backend``, ``streams``, ``dynamic``, ``fullgraph``, ``mode`` and ``max_bytes``, as for
        `TensorProduct`.
    """
    networks = list_networks("convert", network, _has_convertible_or_converted_modules)
    given: dict[str, Any] = {**options}
    _check_convert_options(given)
    if report is not None and not callable(report):
        raise InputError(f"report: give a function of the Conversion, as in report=print, got {report!r}")
    check_known("radial", [radial], _RADIAL, OptionError)
    check_when(program)
    proven = collect_forward_arguments("prove", network, networks, prove)
    timed = collect_forward_arguments("measure", network, networks, measure)
    done: list[nn.Module] = []
    try:
        for one, to_prove, to_measure in zip(networks, proven, timed, strict=True):
            swaps = _convert_and_return_swaps(one, given, keep, only, _RADIAL[radial], to_prove, to_measure, report)
            done.append(one)
            if program is True or [swap.module for swap in swaps] != [one]:  # a layer alone is one kernel already
                serve(one, program)
    except BaseException:
        for one in done:
            restore(one)
        raise
    return network


def _holds_converted_module(network: nn.Module) -> bool:
    return any(get_swap_mark(module) is not None for module in network.modules())


def _has_convertible_or_converted_modules(network: nn.Module) -> bool:
    # not a D3 correction beside a MACE, nor transforms of data
    return (
        _holds_converted_module(network)
        or describe_compiled_program(network) is not None
        or bool(find_swaps_and_kept_modules(network, {}))
    )


def _convert_and_return_swaps(
    network: nn.Module,
    options: dict[str, Any],
    keep: Names,
    only: Names | None,
    edit_swaps: _SwapEdit,
    prove_inputs: _Inputs | None,
    measure_inputs: _Inputs | None,
    report: Callable[[Conversion], object] | None,
) -> list[ClassSwap]:
    adopted = switch_to_installed_classes(network)
    try:
        chosen = make_selection(network, keep, only)
        swaps, kept = _split_findings(apply_selection(network, find_swaps_and_kept_modules(network, options), chosen))
        if not swaps:
            raise TpgenError(explain_nothing_to_convert(network, kept))
        swaps = edit_swaps(swaps)
        compared = _prove_and_measure_copies(network, options, chosen, prove_inputs, measure_inputs, edit_swaps)
        _apply_swaps_and_report(network, swaps, kept, compared, report)
    except BaseException:
        switch_to_packaged_classes(adopted)
        raise
    return swaps


def _apply_swaps_and_report(
    network: nn.Module,
    swaps: list[ClassSwap],
    kept: list[KeptModule],
    proof_and_times: tuple[Proof | None, Times | None],
    report: Callable[[Conversion], object] | None,
) -> None:
    names = _list_names_by_module(network)
    found = Conversion(
        type(network).__name__,
        _make_replaced_report_rows(swaps, names),
        _make_stayed_report_rows(kept, names),
        *proof_and_times,
        own=_list_names_of_native_tpgen_modules(names),
        functions=describe_e3nn_functions_called(network),
    )
    if found.proof and not found.proof.holds:
        raise TpgenError(f"the network is left as it was: {found.proof}")
    _warn_of_unconverted_modules([k for k in kept if not k.asked], names)
    apply_swaps(swaps)
    if report:
        _call_report_or_undo_swaps(report, found, swaps)


def _warn_of_unconverted_modules(kept: Sequence[KeptModule], names_by_module: _NamesByModule) -> None:
    if kept:
        many = len(kept) > 1
        warnings.warn(
            f"{len(kept)} module{'s' * many} stay{'s' * (not many)} without tpgen, the first "
            f"{names_by_module[kept[0].module][0]!r}: {kept[0].why}; tpgen.conversion_report(network) names all",
            stacklevel=5,
        )


def _call_report_or_undo_swaps(
    report: Callable[[Conversion], object], conversion: Conversion, swaps: Iterable[ClassSwap]
) -> None:
    # report what was done; an error there undoes it
    try:
        report(conversion)
    except BaseException:
        for swap in swaps:
            undo_if_swapped(swap.module)
        raise


def restore(network: _Network) -> _Network:
    """Undo `convert`: every module gets its class back and keeps present parameters.

    Raises `TpgenError`, without changes, if no module is converted, if a class changed since, or if a module was
    converted with its holder.
    """
    networks = list_networks("restore", network, _holds_converted_module)
    for one in networks:
        if not _holds_converted_module(one):
            raise TpgenError(
                f"{type(one).__name__} holds nothing that tpgen.convert has converted: nothing to restore "
                "(of a scripted network, restore the one that it was scripted from)"
            )
    undo_swaps(*networks)
    for one in networks:
        serve_no_more(one)
    return network


def conversion_report(network: Any, *, prove: Any = None, measure: Any = None) -> Conversion:
    """Report which modules compute with tpgen, which could, and which cannot and why.

    ``prove`` and ``measure``, as of `convert`, compare stock and converted network.
    """
    one = get_only_network("conversion_report", network, _has_convertible_or_converted_modules)
    (proven,) = collect_forward_arguments("prove", network, [one], prove)
    (timed,) = collect_forward_arguments("measure", network, [one], measure)
    with use_installed_classes(one):
        return _make_conversion_report(one, proven, timed)


def _make_conversion_report(
    network: nn.Module, proof_inputs: _Inputs | None, time_inputs: _Inputs | None
) -> Conversion:
    marks = {module: mark for module in network.modules() if (mark := get_swap_mark(module)) is not None}
    names = _list_names_by_module(network)
    swaps, kept = _split_findings(find_swaps_and_kept_modules(network, {}))
    return Conversion(
        type(network).__name__,
        tuple(
            Replaced(names[m], name_class_with_package(mark.cls), describe_computing_code(m) + describe_idle_hooks(m))
            for m, mark in marks.items()
            if mark.now
        ),
        _make_stayed_report_rows(kept, names),
        *_prove_and_measure_copies(network, {}, None if marks else Selection(), proof_inputs, time_inputs),
        possible=_make_replaced_report_rows(swaps, names),
        own=_list_names_of_native_tpgen_modules(names),
        functions=describe_e3nn_functions_called(network),
    )


def find_swaps_and_kept_modules(network: nn.Module, options: dict[str, Any]) -> list[SwapOrKept]:
    """`ClassSwap`, or `KeptModule` with a reason, per module of e3nn or a known project."""
    with use_installed_classes(network):
        return [*_find_swaps_by_adapters_and_e3nn_rules(network, options), *find_package_mismatches(network)]


def _find_swaps_by_adapters_and_e3nn_rules(network: nn.Module, options: dict[str, Any]) -> list[SwapOrKept]:
    findings: list[SwapOrKept] = []
    for adapter in load_adapters_for(network):
        given = list(adapter(network, options))
        check_adapter_swaps(network, adapter, [f for f in given if isinstance(f, ClassSwap)])
        findings += given
    marks = [(module, mark.covers) for module in network.modules() if (mark := get_swap_mark(module))]
    swaps = [(f.module, f.covers) for f in findings if isinstance(f, ClassSwap)]
    seen = {f.module for f in findings} | {part for whole in (*swaps, *marks) for part in _list_covered_modules(*whole)}
    for module in network.modules():
        if module in seen or get_swap_mark(module) is not None:
            continue
        found = next((found for find in _FINDERS if (found := find(module, options)) is not None), None)
        findings += [found] if found else []
        seen |= set(_list_covered_modules(module, found.covers) if isinstance(found, ClassSwap) else ())
    return add_weight_net_swaps(network, findings)


_FINDERS = (
    find_product_swap,
    find_linear_swap,
    find_harmonics_swap,
    find_radial_net_swap,
    find_gate_swap,
    find_batch_norm_swap,
)  # of e3nn's own modules


def _list_covered_modules(module: nn.Module, names: Iterable[str]) -> Iterator[nn.Module]:
    held = dict(module.named_modules()) if names else {}
    yield from (held[name] for name in names if name in held)  # somebody may have taken one out since


def _prove_and_measure_copies(
    network: nn.Module,
    options: dict[str, Any],
    selection: Selection | None,
    prove_inputs: _Inputs | None,
    measure_inputs: _Inputs | None,
    edit_swaps: _SwapEdit = list,
) -> tuple[Proof | None, Times | None]:
    for name, given in (("prove", prove_inputs), ("measure", measure_inputs)):
        if given is not None and not isinstance(given, Sequence):
            raise InputError(f"{name}: give the arguments of a call as a tuple, as in {name}=(x,), got {a_kind(given)}")
    timed = proof = None
    if measure_inputs is not None:
        stock, converted, _ = _copy_as_stock_and_converted(network, options, selection, edit_swaps)
        for one in (stock, converted) if has_splined_nets(converted) else ():
            one.requires_grad_(False)  # the task is inference
        timed = measure_times(stock, converted, measure_inputs)
    if prove_inputs is not None:
        stock, converted, exact = _copy_as_stock_and_converted(network, options, selection, edit_swaps)
        proof = prove_equal(stock, converted, exact, prove_inputs)
    return proof, timed


def _copy_as_stock_and_converted(
    network: nn.Module, options: dict[str, Any], selection: Selection | None, edit_swaps: _SwapEdit
) -> tuple[nn.Module, nn.Module, list[Callable[[], None]]]:
    # a stock copy and one converted as chosen, None for as it is; and what makes all their stock modules exact
    stock, converted = copy_network_twice(network)
    undo_swaps(stock)
    findings = find_swaps_and_kept_modules(converted, options)
    exact = [
        f.exact
        for f in (*find_swaps_and_kept_modules(stock, options), *findings)
        if isinstance(f, ClassSwap) and f.exact
    ]
    if selection is not None:
        apply_swaps(edit_swaps(_split_findings(apply_selection(converted, findings, selection))[0]))
    return stock, converted, exact


def _split_findings(findings: Iterable[SwapOrKept]) -> tuple[list[ClassSwap], list[KeptModule]]:
    findings = list(findings)
    return [f for f in findings if isinstance(f, ClassSwap)], [f for f in findings if isinstance(f, KeptModule)]


def _list_names_by_module(network: nn.Module) -> _NamesByModule:
    names: _NamesByModule = {}
    for name, module in network.named_modules(remove_duplicate=False):
        names[module] = (*names.get(module, ()), name)
    return names


def _list_names_of_native_tpgen_modules(names_by_module: _NamesByModule) -> tuple[tuple[str, ...], ...]:
    # modules that users built with tpgen: neither converted modules nor parts of either
    ours = [module for module in names_by_module if get_swap_mark(module) or isinstance(module, PlannedModule)]
    parts = {part for whole in ours for part in whole.modules() if part is not whole}
    return tuple(names_by_module[module] for module in ours if not get_swap_mark(module) and module not in parts)


def _make_replaced_report_rows(swaps: Iterable[ClassSwap], names: _NamesByModule) -> tuple[Replaced, ...]:
    return tuple(Replaced(names[s.module], s.was, s.description) for s in _sort_by_module_order(swaps, names) if s.now)


def _make_stayed_report_rows(kept: Iterable[KeptModule], names_by_module: _NamesByModule) -> tuple[Stayed, ...]:
    return tuple(
        Stayed(names_by_module[k.module], name_class_with_package(type(k.module)), k.why)
        for k in _sort_by_module_order(kept, names_by_module)
    )


def _sort_by_module_order(findings: Iterable[_Found], names_by_module: _NamesByModule) -> list[_Found]:
    # as their modules stand in the network, whoever found them
    places = {module: place for place, module in enumerate(names_by_module)}
    return sorted(findings, key=lambda finding: places[finding.module])


def _check_convert_options(options: dict[str, Any]) -> None:
    if "layout" in options:
        raise OptionError(
            "convert takes no layout: the modules around a product speak e3nn's mul_ir, so it must stay that; "
            "tpgen.from_e3nn(product, layout=...) makes a product of another layout"
        )
    refuse_unknown_options((name for name in options if name not in _OPTIONS), _OPTIONS)
