"""Call functions with a module right after it was loaded, before its importer reads names from it."""

from __future__ import annotations

import contextlib
import gc
import sys
from collections.abc import Callable, Iterator, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, TypeVar

Callback = Callable[[ModuleType], None]
PATCH_ERRORS = (OSError, RuntimeError, AttributeError, ImportError, ValueError, LookupError, TypeError)
"""Exceptions that code in a rank may raise when it patches modules or reads objects, with any version of torch."""


Function = TypeVar("Function", bound=Callable[..., Any])


def untraced(function: Function) -> Function:
    """Keep torch.compile out of a function. torch.compiler.disable does the same, but imports the compiler."""
    function._torchdynamo_disable = True  # type: ignore[attr-defined]
    return function


@contextlib.contextmanager
def collection_paused() -> Iterator[None]:
    """Pause the garbage collection: an import makes many objects and little garbage, and each pass visits all."""
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


class _Watch:
    """The first finder on sys.meta_path. It delegates to the other finders and wraps the loaders of watched modules."""

    def __init__(self) -> None:
        self._callbacks: dict[str, list[Callback]] = {}

    def add(self, name: str, callback: Callback) -> None:
        self._callbacks.setdefault(name, []).append(callback)
        if self not in sys.meta_path:
            sys.meta_path.insert(0, self)

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: Any = None
    ) -> ModuleSpec | None:
        """Return the spec that the other finders find. See importlib.abc.MetaPathFinder.find_spec."""
        if name not in self._callbacks:
            return None
        for finder in list(sys.meta_path):
            find = None if finder is self else getattr(finder, "find_spec", None)
            spec: ModuleSpec | None = None if find is None else find(name, path, target)
            if spec is not None:
                self._attach(name, spec)
                return spec
        return None

    def _attach(self, name: str, spec: ModuleSpec) -> None:
        execute = getattr(spec.loader, "exec_module", None)
        if execute is None:
            return

        def executed(module: ModuleType) -> None:
            with collection_paused():
                execute(module)
            if module.__name__ != name:  # one zipimporter loads all modules of a folder in a zip file
                return
            for callback in self._callbacks.pop(name, ()):
                _try(callback, module)

        with contextlib.suppress(AttributeError, TypeError):  # a loader that takes no attributes
            spec.loader.exec_module = executed  # type: ignore[union-attr, method-assign]


def _try(callback: Callback, module: ModuleType) -> None:
    with contextlib.suppress(*PATCH_ERRORS):
        callback(module)


_watch = _Watch()


def when_imported(name: str, callback: Callback) -> None:
    """Call `callback` with the module `name` once it is loaded; at once if it already is. Its exceptions are dropped.

    If another thread or an outer frame is importing the module now, `callback` gets the incomplete module.
    """
    module = sys.modules.get(name)
    if module is not None:
        _try(callback, module)
    else:
        _watch.add(name, callback)


def import_faster(name: str) -> None:
    """Import the module `name` without garbage collection, if it is not loaded yet."""
    when_imported(name, lambda module: None)


def wrap_imported(module: str, owner: str, name: str, wrap: Callable[[Any], Any]) -> None:
    """Replace a function by `wrap(function)` once its module is loaded. `owner`: its class, or ""."""

    def callback(loaded: ModuleType) -> None:
        holder = getattr(loaded, owner) if owner else loaded
        setattr(holder, name, wrap(getattr(holder, name)))

    when_imported(module, callback)
