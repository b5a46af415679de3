"""How many parameters the whole model has, as one rank finds among its objects."""

from __future__ import annotations

from typing import Any

import pytest

from distui.runners.inrank.model_size import parameters_of

pytestmark = [pytest.mark.real, pytest.mark.torch]


def test_only_a_model_that_is_here_as_a_whole_has_a_size() -> None:
    torch = pytest.importorskip("torch")
    nn = torch.nn

    class MoELayer(nn.Linear):  # type: ignore[misc, name-defined, unused-ignore]
        pass

    class ColumnParallelLinear(nn.Linear):  # type: ignore[misc, name-defined, unused-ignore]
        pass

    def optimizes(parameters: Any) -> Any:
        """An optimizer, without the compiler that torch imports to make one."""
        made = object.__new__(torch.optim.SGD)
        made.param_groups = [{"params": list(parameters)}]
        return made

    def size(model: Any, *more: Any) -> int | None:
        optimizer = optimizes(each for each in model.parameters() if each.requires_grad)
        items = [object(), *model.modules(), *model.parameters(), optimizer, *more]
        return parameters_of({}, optimizer, items)

    def layers() -> Any:
        return nn.Sequential(nn.Linear(10, 10), nn.Linear(10, 10))

    assert size(layers()) == 220
    assert size(layers(), optimizes(nn.Linear(1, 1).parameters())) == 222
    assert size(layers(), MoELayer(2, 2)) is None
    assert size(layers(), ColumnParallelLinear(2, 2)) is None
    frozen = layers()
    frozen[0].requires_grad_(False)
    assert size(frozen) is None
